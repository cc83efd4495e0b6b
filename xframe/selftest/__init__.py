"""Lies of known size, planted in a framework or a backend, and whether the tool finds them where they were planted."""
