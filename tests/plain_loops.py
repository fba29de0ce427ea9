"""The paper's Algorithm 1, Attention Bias Calibration, as meant and as plain loops over cells.

Follows appendix D (steps 2.1 to 2.4) and appendix F, with what their print leaves open decided so:

    the sum over a line and its size start anew for each cell; the average is over the line's own cells;
    d_max, μ and σ (of the population) are over all lines' values, each line counted once;
    for Δ < 0 the small matrix is moved N − n columns right, so that the top-right corners meet;
    a head that is closed everywhere becomes 0 everywhere.
"""

from statistics import fmean, pstdev

CLOSED = float("-inf")


def algorithm_1(attention, M, N, directions, kappa, statistic="mean", pool="head", threshold_on="centred"):
    """Bias of M × N for each head, from averaged attention of m × n, m ≤ M, n ≤ N.

    Args:
        attention: nested lists [heads][m][n].
        M, N: rows and columns of the bias.
        directions: the Δ of the directions (1, Δ).
        kappa: κ of the threshold κσ + μ.
        statistic: `mean` or `sum` of a line's cells.
        pool: d_max, μ and σ over all lines of the `head` or of each `direction` on its own.
        threshold_on: what must exceed the threshold, the `line`'s d or the `centred` d − d_max.

    Returns:
        Nested lists [heads][M][N].
    """
    result = []
    for A in attention:
        m, n = len(A), len(A[0])
        values = {delta: line_values(A, delta, statistic) for delta in directions}
        bias = [[CLOSED] * N for _ in range(M)]
        for delta in directions:
            if pool == "direction":
                pooled = values[delta]
            else:
                pooled = [d for of_direction in values.values() for d in of_direction]
            d_max, mean = max(pooled), fmean(pooled)
            threshold = kappa * pstdev(pooled) + mean + 1e-6 * abs(mean)  # equal lines are not above their mean
            shift = N - n if delta < 0 else 0
            for i in range(M):
                for j in range(N):
                    line = cells_of_line(i, j - shift, delta, m, n)
                    if not line:
                        continue
                    d = summarise(A, line, statistic)
                    if (d - d_max if threshold_on == "centred" else d) > threshold:
                        bias[i][j] = max(bias[i][j], d - d_max)
        if all(cell == CLOSED for row in bias for cell in row):
            bias = [[0.0] * N for _ in range(M)]
        result.append(bias)
    return result


def cells_of_line(i, j, delta, m, n):
    """The cells of an m × n matrix on the line through (i, j), which may lie outside it."""
    line = []
    for k in range(-i, m - i):
        if 0 <= j + k * delta < n:
            line.append((i + k, j + k * delta))
    return line


def summarise(A, line, statistic):
    """d_l: the sum or mean of the line's cells."""
    total = sum(A[i][j] for i, j in line)
    return total / len(line) if statistic == "mean" else total


def line_values(A, delta, statistic):
    """d_l of every line of one direction, each once."""
    m, n = len(A), len(A[0])
    values = []
    for i in range(m):
        for j in range(n):
            line = cells_of_line(i, j, delta, m, n)
            if line[0] == (i, j):
                values.append(summarise(A, line, statistic))
    return values
