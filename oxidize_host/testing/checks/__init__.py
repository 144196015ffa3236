"""The checks of the conformance kit, by subject; `oxidize_host.testing.BackendTests` has them all."""
