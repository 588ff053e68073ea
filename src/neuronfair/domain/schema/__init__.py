"""The input schema (domain file): reading, inferring and mining its rules."""
