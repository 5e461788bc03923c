"""Files -> batches: corpus reads, store keeps ids on disk, batches orders them."""
