"""Room `training`."""
