"""Run folders: what a search or a proof has found so far, so that it resumes after a kill."""
