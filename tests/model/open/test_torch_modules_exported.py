"""torch.export archives: opened by torch's own loader for those who trust the file, refused otherwise."""

from __future__ import annotations

import io
import pickle
import zipfile

import pytest
import torch
from torch import nn
from torch.nn import functional

from neuronfair.domain.schema.toml import parse_domain
from neuronfair.errors import ModelError
from neuronfair.model.decision import Decision
from neuronfair.model.encoding import TableEncoding
from neuronfair.model.open import wrap_model
from tests.conftest import PEOPLE
from tests.model.open.conftest import check_white_box, trained


class Net(nn.Module):
    """Dense and convolutional layers, modules and functions, an in-place one and a reshape by the batch size."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.norm = nn.Linear(width, 8), nn.BatchNorm1d(8)
        self.b, self.drop = nn.Linear(8, 4), nn.Dropout(0.5)
        self.c, self.elu, self.o = nn.Conv1d(1, 3, 3, padding=1), nn.ELU(0.7, inplace=True), nn.Linear(12, 1)

    def forward(self, x):
        x = torch.relu(self.norm(self.a(x)))
        x = self.drop(functional.leaky_relu(self.b(x), 0.3))
        x = self.elu(self.c(x.unsqueeze(1)))
        return torch.sigmoid(self.o(x.view(x.size(0), -1))).squeeze(1)


def export(module: nn.Module, path, x, *, dynamic: bool = True):
    shapes = ({0: torch.export.Dim("batch")},) if dynamic else None
    torch.export.save(torch.export.export(module, (x[:3],), dynamic_shapes=shapes), path)
    return path


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A trained network and the bytes of its archive: exporting takes a while."""
    torch.manual_seed(0)
    people = parse_domain(PEOPLE)
    x = TableEncoding.of(people).encode(people.sample(300, torch.Generator().manual_seed(0)))
    module = trained(Net(x.shape[1]), x, lambda y: nn.functional.binary_cross_entropy(y, (x[:, 0] > 0).float()))
    return module, export(module, tmp_path_factory.mktemp("net") / "net.pt2", x).read_bytes()


@pytest.fixture
def saved(original, tmp_path):
    path = tmp_path / "net.pt2"
    path.write_bytes(original[1])
    return original[0], path


def test_a_trusted_archive_is_a_white_box(saved, crowd):
    module, path = saved
    found = wrap_model(path, crowd.domain, crowd.rows, trust_pickle=True)
    check_white_box(found, crowd.rows, module(crowd.x).detach(), [8, 4, 12])
    assert (found.kind, found.decision) == ("torch.export", Decision("threshold", 0.5))


def test_an_archive_is_refused_without_trust_and_nothing_of_it_runs(saved, crowd, monkeypatch):
    monkeypatch.setattr(torch.export, "load", lambda _: pytest.fail("it was loaded"))
    with pytest.raises(ModelError, match=r"net.pt2: a torch.export archive.*--trust-pickle.*ONNX.*safetensors"):
        wrap_model(saved[1], crowd.domain, crowd.rows)


class Mark:
    def __reduce__(self):
        return open, ("opened", "w")


def test_a_pickle_inside_an_untrusted_archive_is_never_opened(saved, crowd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    content = io.BytesIO()
    with zipfile.ZipFile(saved[1]) as archive, zipfile.ZipFile(content, "w") as changed:
        for name in archive.namelist():
            changed.writestr(name, pickle.dumps(Mark()) if name.endswith(".pt") else archive.read(name))
    saved[1].write_bytes(content.getvalue())
    with pytest.raises(ModelError, match=r"a torch.export archive"):
        wrap_model(saved[1], crowd.domain, crowd.rows)
    assert not (tmp_path / "opened").exists()


def test_a_fixed_batch_size_is_refused(saved, crowd, tmp_path):
    path = export(saved[0], tmp_path / "fixed.pt2", crowd.x, dynamic=False)
    with pytest.raises(ModelError, match=r"batches of 3 rows only. Export it with a dynamic batch size"):
        wrap_model(path, crowd.domain, crowd.rows, trust_pickle=True)


class Counter(nn.Module):
    """Counts its calls in a buffer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.o = nn.Linear(width, 2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        self.calls += 1
        return self.o(x).relu() + self.calls


def test_a_program_that_changes_its_buffers_is_refused(crowd, tmp_path):
    path = export(Counter(crowd.x.shape[1]).eval(), tmp_path / "net.pt2", crowd.x)
    with pytest.raises(ModelError, match="its scores change from call to call"):
        wrap_model(path, crowd.domain, crowd.rows, trust_pickle=True)


class Pair(nn.Module):
    """Returns two tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.o = nn.Linear(width, 2)

    def forward(self, x):
        return self.o(x), x


def test_one_output_is_expected(crowd, tmp_path):
    path = export(Pair(crowd.x.shape[1]), tmp_path / "pair.pt2", crowd.x)
    with pytest.raises(ModelError, match="returns 2 values; one tensor of scores is expected"):
        wrap_model(path, crowd.domain, crowd.rows, trust_pickle=True)


def test_a_damaged_archive_is_refused_in_one_line(saved, crowd):
    saved[1].write_bytes(saved[1].read_bytes()[:500])
    with pytest.raises(ModelError, match=r"net.pt2: not a torch.export archive") as error:
        wrap_model(saved[1], crowd.domain, crowd.rows, trust_pickle=True)
    assert "\n" not in str(error.value)
