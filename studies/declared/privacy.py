"""Xu et al., FedReg's Table 4: what an attack on updates recovers, against what a defence costs."""

from studies.declaration import PSNR, SSIM, SWEEP, Study, Sweep

_DEFENCES = ("fedavg", "fedprox", "fedcurv", "fedreg", "fedreg_mg", "fedavg_dp_sgd_0.01", "fedavg_dp_sgd_0.1")
_DEFENCES += ("fedavg_dp_sgd_1", "fedprox_dp_sgd_0.1", "fedavg_user_level")
# Cosine distance: by squared distance FedReg looks like a defence (docs/papers/fedreg.md).
_ATTACK = "--distance cosine --lr 0.1 --tv 0.001 --labels known --iterations 2000 --clients"
# Client 1's first digit is known so well at the end that its update under modified gradients is 0.
_CLIENTS = {"digits": "[0,2,3,4]", "mnist": "[0,2,3,4,5,6,7,8]"}

STUDIES = [
    Study(
        name=f"privacy_{data}",
        title=f"Attacks on updates against accuracy: {'digits' if data == 'digits' else 'MNIST'}",
        claim="With modified gradients FedReg hides more than DP-SGD at a higher accuracy; by itself it hides nothing.",
        paper="Table 4: FedReg with modified gradients hides more than DP-SGD at a higher accuracy.",
        sweeps=tuple(Sweep(defence, f"--config privacy_{data}_{defence}.yaml --seeds 1") for defence in _DEFENCES),
        measures={PSNR: "PSNR of recovered images, dB", SSIM: "SSIM", "test_accuracy_last": "last test accuracy"},
        baseline={SWEEP: "fedreg_mg"},
        further=(({SWEEP: "fedreg"}, {SWEEP: "fedavg"}),),
        claimed=(PSNR, SSIM, "test_accuracy_last"),
        remark="One seed gives differences without p: no part of the claim is tested.",
        attack=f"{_ATTACK} {clients}",
    )
    for data, clients in _CLIENTS.items()
]
