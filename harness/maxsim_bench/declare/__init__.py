"""Room `declare`: TOML files in, validated experiments and their cells out. Imports nothing else of ours."""
