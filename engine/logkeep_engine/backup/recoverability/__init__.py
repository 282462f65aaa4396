"""The times up to which everything can be recovered, and after which brokers may delete what is not archived."""
