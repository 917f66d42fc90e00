"""Tables of any kind: of pandas, polars, numpy and pyarrow, or from files."""
