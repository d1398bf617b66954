"""What the processor can do: a round is one product of two float32 matrices of 2048 x 2048."""

from time import perf_counter

import torch

from benchmarks.protocol import Driver, option_parser

SIZE = 2048
FLOPS = 2 * SIZE**3


def main() -> None:
    """Multiply once a round."""
    options = option_parser(__doc__).parse_args()
    torch.set_num_threads(options.threads)
    left, right, product = torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE), torch.empty(SIZE, SIZE)
    driver = Driver()
    driver.say(ready=True)
    while driver.asks_for_round(dict):
        start = perf_counter()
        torch.mm(left, right, out=product)
        driver.say(seconds=perf_counter() - start)


if __name__ == "__main__":
    main()
