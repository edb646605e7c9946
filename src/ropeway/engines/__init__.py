"""The engines: one protocol, one package per store, all proven by `ropeway.testing.conformance`."""
