//! Layers: the embedded default, a file, the environment, `--set`.
