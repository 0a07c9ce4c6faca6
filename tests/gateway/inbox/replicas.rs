//! Two replicas on one pair of stores: many write, many follow, nobody misses anything.
