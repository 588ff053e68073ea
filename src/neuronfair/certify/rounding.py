import torch
def errors_of(affines, curves, size):
    eps = 2.0**-53
    errors, err = [], 0
    for i, affine in enumerate(affines):
        if i:
            err = affine.weight.abs() @ err
            size = affine.weight.abs() @ size + affine.bias.abs()
        err = err + 64 * len(affine.weight.T) * eps * size
        errors.append(err)
    return errors
