"""Parts that units are built of: pipelines, arithmetic, tables, dividers."""
