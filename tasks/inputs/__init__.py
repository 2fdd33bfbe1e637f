"""From data files to rows: formats, compression, shapes."""
