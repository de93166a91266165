"""Room `backends`: a name in, a callable out. May import: declare, `maxsim`."""
