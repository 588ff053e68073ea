"""The declared input space: attributes, rules, twins, tables in files and in memory, and the population model."""
