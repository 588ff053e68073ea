from __future__ import annotations

import pytest

from neuronfair.audits.settings import AuditSettings
from neuronfair.errors import NeuronFairError


def test_fewer_counterfactuals_are_looked_at_where_they_do_not_lead():
    leads, beside = (AuditSettings().choose_counterfactual_settings(50_000, leads=leads) for leads in (True, False))
    assert (leads.draws, leads.permutations, leads.records) == (32, 20, 50_000)
    assert beside.permutations == 20
    assert beside.draws * beside.records <= leads.draws * leads.records / 100
    assert AuditSettings.quick().choose_counterfactual_settings(20_000, leads=True).permutations == 5


def test_what_is_no_kind_of_twins_is_refused():
    with pytest.raises(NeuronFairError, match="twins must be flip or counterfactual, got 'both'"):
        AuditSettings(twins="both")
    with pytest.raises(NeuronFairError, match="permutations must be 2 or more, got 1"):
        AuditSettings(permutations=1)
