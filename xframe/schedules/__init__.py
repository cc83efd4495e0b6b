"""Schedule logs kept: found, checked, merged, and put into plans."""
