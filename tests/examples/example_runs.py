"""Runs the examples small, each on its command line; see test_examples.py."""

import sys

from examples import d4pg, mpo, own_step, resnet50, sn_gan, v_mpo

CONTROL = "--episodes 2 --updates 4 --updates-per-call 2 --batch 16 --hidden 8"
RESNET = "--steps 2 --batch 4 --side 32 --blocks 1 1 --width 4 --warmup-steps 1"
OWN = "--batch 8 --save-steps 3"
GAN = "--batch 8 --width 4 --sheet-steps 1"


def main(strategy, out, images, *names):
    """Makes the runs of these names in a folder, or all of them."""

    def run(example, name, words):
        if not names or name in names:
            example.main(["--strategy", strategy, "--out", f"{out}/{name}", *words.split()])

    run(d4pg, "d4pg", CONTROL)
    run(mpo, "mpo", f"{CONTROL} --samples 3")
    run(v_mpo, "v_mpo", f"{CONTROL} --episodes-per-round 1")
    run(resnet50, "resnet50", f"{RESNET} --data {images}")
    run(sn_gan, "sn_gan", f"{GAN} --steps 1")
    run(own_step, "own_step", f"{OWN} --steps 6")
    if strategy == "single":
        run(sn_gan, "sn_gan", f"{GAN} --steps 2")
        run(sn_gan, "straight", f"{GAN} --steps 2")
        run(own_step, "own_parts", f"{OWN} --steps 3")
        run(own_step, "own_parts", f"{OWN} --steps 6")


if __name__ == "__main__":
    main(*sys.argv[1:])
