"""`/context`, health and search over what is stored. Its own JSON, no provider's."""
