"""Schedule logs made: which knobs of a plan's templates are fastest on a device."""
