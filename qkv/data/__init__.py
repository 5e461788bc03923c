"""Data loading: read corpora, store token ids in memory-mapped files, plan batches."""
