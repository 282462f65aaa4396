"""A line chart as SVG, small enough to be written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_WIDTH, _HEIGHT = 640, 320
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 34, 46
_COLORS = ("#2a78d6", "#d95926", "#3a9b6a", "#8a63c7")
_GRAY = "#767676"  # to be read on white and on black


def line_chart(
    title: str,
    x_label: str,
    y_label: str,
    series: Mapping[str, Sequence[tuple[float, float]]],
    limit: float,
    limit_name: str = "limit",
    ticks: Sequence[Sequence[float]] = (),
) -> str:
    """Lines with dots over linear axes from zero, and a dashed line at `limit`, which is the top of the y axis' scale
    unless a point lies higher. `ticks` of x and y: by default all points, and the limit.
    """
    points = [point for line in series.values() for point in line]
    most_x = max((x for x, _ in points), default=1) or 1
    most_y = max([limit, *(y for _, y in points)]) * 1.1

    def place(x: float, y: float) -> tuple[float, float]:
        across = _LEFT + x / most_x * (_WIDTH - _LEFT - _RIGHT)
        return across, _HEIGHT - _BOTTOM - y / most_y * (_HEIGHT - _TOP - _BOTTOM)

    left, right, floor = _LEFT, _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<text x="{left}" y="18" font-size="14" fill="{_GRAY}">{title}</text>',
        f'<path d="M{left} {_TOP}V{floor}H{right}" fill="none" stroke="{_GRAY}"/>',
        f'<text x="{(left + right) / 2:.0f}" y="{_HEIGHT - 8}" text-anchor="middle" fill="{_GRAY}">{x_label}</text>',
        f'<text x="14" y="{(_TOP + floor) / 2:.0f}" text-anchor="middle" fill="{_GRAY}" '
        f'transform="rotate(-90 14 {(_TOP + floor) / 2:.0f})">{y_label}</text>',
    ]
    at = place(0, limit)[1]
    parts.append(f'<path d="M{left} {at:.1f}H{right}" stroke="{_GRAY}" stroke-dasharray="5 4"/>')
    parts.append(f'<text x="{right}" y="{at - 5:.1f}" text-anchor="end" fill="{_GRAY}">{limit_name} {limit:g}</text>')
    x_ticks, y_ticks = ticks or (sorted({x for x, _ in points}), (0.0, limit / 2, limit))
    for y in y_ticks:
        parts.append(f'<text x="{left - 6}" y="{place(0, y)[1] + 4:.1f}" text-anchor="end" fill="{_GRAY}">{y:g}</text>')
    for x in x_ticks:
        parts.append(
            f'<text x="{place(x, 0)[0]:.1f}" y="{floor + 16}" text-anchor="middle" fill="{_GRAY}">{x:g}</text>'
        )
    for number, (name, line) in enumerate(series.items()):
        color = _COLORS[number % len(_COLORS)]
        places = [place(x, y) for x, y in line]
        path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        parts.append(f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in places]
        parts.append(f'<text x="{left + 12 + 90 * number}" y="{floor - 8}" fill="{color}">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
