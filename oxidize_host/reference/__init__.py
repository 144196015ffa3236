"""The built-in backend ``numpy``: slow, plain, and the oracle for all others."""
