"""The checker of certificates, which shares nothing with the prover but the domain and the weights."""
