"""Pools for tests of what is done on them."""

from __future__ import annotations

import pickle
from dataclasses import dataclass

from neuronfair.scale.pool import Serial


@dataclass(frozen=True)
class Pickled(Serial):
    """This process, but all that goes to a piece and comes back from it is sent as bytes."""

    def map(self, work, shared, items, **options):
        sent = pickle.dumps((work, shared))

        def piece(_, item, note):
            there, common = pickle.loads(sent)
            return pickle.loads(pickle.dumps(there(common, pickle.loads(pickle.dumps(item)), note)))

        return super().map(piece, None, items, **options)
