"""Reads the trees of CatBoost, whose reader can crash on a damaged file."""

from __future__ import annotations

import catboost
import numpy as np

ROWS = 64  # that a model is asked about, lest asking it ends the process


def read(content: bytes, memory: int) -> bytes:
    """Return a model as CatBoost itself writes it."""
    model = catboost.CatBoost()
    model.load_model(blob=content)
    kinds = model.get_cat_feature_indices()
    if model.get_text_feature_indices() or model.get_embedding_feature_indices():
        raise ValueError("it reads texts or embeddings, which no table of people holds")
    for tree in range(0 if model._object._is_oblivious() else model.tree_count_):
        _check_steps(model._object._get_tree_step_nodes(tree))
    width = len(model.feature_names_)
    rows = np.random.default_rng(0).normal(0, 100, (ROWS, width)).astype(object)
    rows[:, kinds] = rows[:, kinds].astype(str)
    model.predict(rows, thread_count=1)
    return bytes(model._serialize_model())


def _check_steps(steps: list[tuple[int, int]]) -> None:
    """Refuse a tree that is not of one depth and whose branches lead out of it."""
    for place, branches in enumerate(steps):
        if any(place + way >= len(steps) for way in branches):
            raise ValueError("a branch of a tree leads nowhere")
