"""The checker of certificates: what it shares with the prover is listed in tests/proof/checker/test_check_alone.py."""
