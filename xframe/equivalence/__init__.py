"""Is it the same computation? The float64 reference, error bounds and verdicts."""
