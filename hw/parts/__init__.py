"""Building blocks of units: pipelines, arithmetic, tables, dividers."""
