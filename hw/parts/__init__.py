"""Parts that units are built of: pipelines, rounding, tables, dividers, codes of trits."""
