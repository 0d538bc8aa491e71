"""Bessel functions and the Airy function."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from torchport.operators.library.special_float64 import floating, in_double, instead, nan_where, polynomial
from torchport.operators.registration import composes

# aten::i0, aten::special_{i0e, i1, i1e, bessel_j0, bessel_j1, bessel_y0, bessel_y1, spherical_bessel_j0,
# modified_bessel_{i0, i1, k0, k1}, scaled_modified_bessel_{k0, k1}}
#
# ONNX has none of them. Near zero each is a power series, far away a wave or a decay with a smooth factor; both are
# polynomials here, of a t that runs over [-1, 1]:
#
#     near, x ≤ 8   e⁻ˣ·I₀, e⁻ˣ·I₁/x            t = x/4 - 1
#                   J₀, J₁/x                     t = x²/32 - 1
#                   Y₀ - 2/π·log x·J₀, (Y₁ - 2/π·(log x·J₁ - 1/x)) / x
#           x ≤ 2   K₀ + log(x/2)·I₀, x·(K₁ - log(x/2)·I₁)          t = x²/2 - 1
#     far           √x·e⁻ˣ·I                     t = 16/x - 1
#                   √x·eˣ·K                      t = 4/x - 1
#                   J = √(2/πx)·(P·cos χ - Q·sin χ), Y = √(2/πx)·(P·sin χ + Q·cos χ), χ = x - π/4 - ν·π/2
#                   P, x·Q                       t = 128/x² - 1
#
# Source of truth: PyTorch's answers; DLMF 10. Y and K are NaN below zero there, -∞ and ∞ at zero.

_WAVE, _DECAY = 8.0, 2.0  # where near ends


def i0e(x: Tensor) -> Tensor:
    """e^-|x| · I₀(x)"""
    return _scaled_i(torch.abs(x), I0_NEAR, I0_FAR, power=0)


def i1e(x: Tensor) -> Tensor:
    """e^-|x| · I₁(x)"""
    return torch.sign(x) * _scaled_i(torch.abs(x), I1_NEAR, I1_FAR, power=1)


def _scaled_i(size: Tensor, near: tuple[float, ...], far: tuple[float, ...], power: int) -> Tensor:
    is_near = size <= _WAVE
    low, high = instead(size, ~is_near, _WAVE), instead(size, is_near, _WAVE)
    inner = polynomial(low / 4 - 1, near) * (low if power else 1.0)
    return torch.where(is_near, inner, polynomial(16 / high - 1, far) / torch.sqrt(high))


def i0(x: Tensor) -> Tensor:
    """I₀(x)"""
    return torch.exp(torch.abs(x)) * i0e(x)


def i1(x: Tensor) -> Tensor:
    """I₁(x)"""
    return torch.exp(torch.abs(x)) * i1e(x)


def _as_far_as_exp(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """PyTorch's I is infinite where eˣ is: from 88.7 in float32, though I reaches 91.9. At ∞ it is NaN: ∞ · 0."""

    def run(self: Tensor) -> Tensor:
        x = self.to(torch.float64)
        largest = torch.finfo(torch.float64 if self.dtype == torch.float64 else torch.float32).max
        end = torch.sign(x) * torch.inf if function is i1 else torch.full_like(x, torch.inf)
        result = torch.where(torch.abs(x) > math.log(largest), end, function(x))
        return nan_where(torch.isinf(x), result).to(floating(self))

    return run


def scaled_k0(x: Tensor) -> Tensor:
    """eˣ · K₀(x)"""
    low = instead(x, x > _DECAY, _DECAY)
    near = polynomial(low * low / 2 - 1, K0_NEAR) - torch.log(low / 2) * i0(low)
    return _k(x, near * torch.exp(low), K0_FAR)


def scaled_k1(x: Tensor) -> Tensor:
    """eˣ · K₁(x)"""
    low = instead(x, x > _DECAY, _DECAY)
    near = polynomial(low * low / 2 - 1, K1_NEAR) / low + torch.log(low / 2) * i1(low)
    return _k(x, near * torch.exp(low), K1_FAR)


def _k(x: Tensor, near: Tensor, far: tuple[float, ...]) -> Tensor:
    high = instead(x, x <= _DECAY, _DECAY)
    result = torch.where(x <= _DECAY, near, polynomial(4 / high - 1, far) / torch.sqrt(high))
    return _at_zero(x, result, torch.inf)


def k0(x: Tensor) -> Tensor:
    """K₀(x)"""
    return torch.exp(-x) * scaled_k0(x)


def k1(x: Tensor) -> Tensor:
    """K₁(x)"""
    return torch.exp(-x) * scaled_k1(x)


def j0(x: Tensor) -> Tensor:
    """J₀(x)"""
    size = torch.abs(x)
    return torch.where(size <= _WAVE, _near(size, J0_NEAR), _wave(size, P0_FAR, Q0_FAR, 0.25, 0.0))


def j1(x: Tensor) -> Tensor:
    """J₁(x)"""
    size = torch.abs(x)
    near, far = _near(size, J1_NEAR) * size, _wave(size, P1_FAR, Q1_FAR, 0.75, 0.0)
    return torch.sign(x) * torch.where(size <= _WAVE, near, far)


def y0(x: Tensor) -> Tensor:
    """Y₀(x)"""
    low = instead(x, x > _WAVE, _WAVE)
    near = _near(low, Y0_NEAR) + 2 / math.pi * torch.log(low) * _near(low, J0_NEAR)
    far = _wave(x, P0_FAR, Q0_FAR, 0.25, 0.5)
    return _at_zero(x, torch.where(x <= _WAVE, near, far), -torch.inf)


def y1(x: Tensor) -> Tensor:
    """Y₁(x)"""
    low = instead(x, x > _WAVE, _WAVE)
    logarithm = torch.log(low) * _near(low, J1_NEAR) * low - 1 / low
    near = _near(low, Y1_NEAR) * low + 2 / math.pi * logarithm
    far = _wave(x, P1_FAR, Q1_FAR, 0.75, 0.5)
    return _at_zero(x, torch.where(x <= _WAVE, near, far), -torch.inf)


def _near(size: Tensor, series: tuple[float, ...]) -> Tensor:
    low = instead(size, size > _WAVE, _WAVE)
    return polynomial(low * low / 32 - 1, series)


def _wave(size: Tensor, p: tuple[float, ...], q: tuple[float, ...], phase: float, later: float) -> Tensor:
    """`phase` and `later` in half turns: Y is J a quarter of a turn later."""
    high = instead(size, size <= _WAVE, _WAVE)
    t = 128 / (high * high) - 1
    angle = high - (phase + later) * math.pi
    wave = polynomial(t, p) * torch.cos(angle) - polynomial(t, q) / high * torch.sin(angle)
    return torch.sqrt(2 / (math.pi * high)) * wave


def _at_zero(x: Tensor, result: Tensor, number: float) -> Tensor:
    return torch.where(x == 0, torch.full_like(x, number), nan_where(x < 0, result))


def spherical_j0(x: Tensor) -> Tensor:
    """sin(x) / x, one at zero."""
    known = instead(x, x == 0, 1.0)
    result = torch.where(x == 0, torch.ones_like(x), torch.sin(instead(known, torch.isinf(x), 0.0)) / known)
    return torch.where(torch.isinf(x), torch.zeros_like(x), result)


composes("aten::special_i0e.default")(in_double(i0e))
composes("aten::special_i1e.default")(in_double(i1e))
composes("aten::special_modified_bessel_k0.default")(in_double(k0))
composes("aten::special_modified_bessel_k1.default")(in_double(k1))
composes("aten::special_scaled_modified_bessel_k0.default")(in_double(scaled_k0))
composes("aten::special_scaled_modified_bessel_k1.default")(in_double(scaled_k1))
composes("aten::special_bessel_j0.default")(in_double(j0))
composes("aten::special_bessel_j1.default")(in_double(j1))
composes("aten::special_bessel_y0.default")(in_double(y0))
composes("aten::special_bessel_y1.default")(in_double(y1))
composes("aten::special_spherical_bessel_j0.default")(in_double(spherical_j0))
# Under torch.special's other names too: torch.export keeps the name that was called (native_functions.yaml).
composes("aten::i0.default", "aten::special_i0.default", "aten::special_modified_bessel_i0.default")(_as_far_as_exp(i0))
composes("aten::special_i1.default", "aten::special_modified_bessel_i1.default")(_as_far_as_exp(i1))


# The polynomials of bessel.py, the lowest power first; what they stand for is told there.
#
# Interpolated with mpmath at Chebyshev's points of [-1, 1], to 1e-17 of the largest value.

# fmt: off
I0_NEAR = (
    0.2070019212239867, -0.11300432688620539, 0.09451562853995098, -0.08904344136077749, 0.08734341617552316,
    -0.08496338091541733, 0.07927522590716346, -0.06954119563168236, 0.05677703201991694, -0.042985949295422196,
    0.03017791202297836, -0.019682655791721185, 0.01196007790702622, -0.006792394790940049, 0.003617126448897043,
    -0.0018119030567637058, 0.0008563152748272305, -0.0003828652649829953, 0.00016240542162878106,
    -6.55680596440179e-05, 2.520232727107692e-05, -9.183742586936205e-06, 3.2293390826404927e-06,
    -1.1420453238819167e-06, 3.6758429265554296e-07, -8.591406444264666e-08, 2.626536315197011e-08,
    -1.6316042856792757e-08, 4.470516727511741e-09,
)
I0_FAR = (
    0.40217650944500805, 0.003360551983667862, 0.0001362160743919305, 1.114303379093204e-05, 1.4838475658279249e-06,
    2.9735985885673923e-07, 8.872219737904054e-08, 3.9325843345529525e-08, 2.1548377974791598e-08,
    7.554691881248808e-09, -6.747657956107524e-09, -1.340891754008974e-08, -5.404771567579958e-09,
    7.552583062123384e-09, 7.4304646503254255e-09, -3.505966530879332e-09, -5.95356943826489e-09,
    1.5200816953924232e-09, 3.6379546359011143e-09, -5.715843864202709e-10, -1.6189806836246817e-09,
    1.5279202694981569e-10, 4.577087631643623e-10, -2.0260604287413626e-11, -6.067631570603006e-11,
)
I1_NEAR = (
    0.04468770987560883, -0.06112433802966629, 0.0680575999095127, -0.06848260620582691, 0.06376740371333642,
    -0.05528003922699163, 0.04467457262306668, -0.03367135552108536, 0.02368601693352639, -0.015571309243980052,
    0.009583962344356725, -0.005534567847563678, 0.003005761416447221, -0.00153887456203039, 0.0007445158727006064,
    -0.00034117602890733307, 0.00014841259927108295, -6.142360299099795e-05, 2.4248668418883105e-05,
    -9.136543922789091e-06, 3.275843813058896e-06, -1.1327072698408053e-06, 3.909437548023672e-07,
    -1.2424759932738304e-07, 2.987385645901576e-08, -8.984420960424587e-09, 5.2131237878886215e-09,
    -1.41695079121077e-09,
)
I1_FAR = (
    0.38939845902587233, -0.009749577193235737, -0.00021923576383388928, -1.5038547200567218e-05,
    -1.8349101326980946e-06, -3.483855761044295e-07, -1.0001288294864884e-07, -4.312917729178349e-08,
    -2.337392820814264e-08, -8.427766093735183e-09, 6.7344648153015925e-09, 1.4034238782067183e-08,
    5.974437608040264e-09, -7.64239413436356e-09, -7.888351507862078e-09, 3.4262341490077958e-09, 6.242741219786445e-09,
    -1.4387250533041013e-09, -3.794670896208339e-09, 5.295625441161261e-10, 1.6848984479705148e-09,
    -1.4011625179770627e-10, -4.758818838703853e-10, 1.8515118828852956e-11, 6.305965197150057e-11,
)
K0_NEAR = (
    -0.30362077291575545, 0.3404973210133806, 0.07177701034240509, 0.005053392643196092, 0.0001828055582791554,
    4.054506619949891e-06, 6.093361894172114e-08, 6.623013272794453e-10, 5.452564662772586e-12, 3.518631515854722e-14,
)
K0_FAR = (
    1.2185953385133905, -0.03107146182488952, 0.0030328918102753206, -0.00047976905676623137, 9.95605474202942e-05,
    -2.473520456146691e-05, 7.002245645755651e-06, -2.191177788015528e-06, 7.427801232190095e-07,
    -2.689066247290161e-07, 1.02954317593912e-07, -4.1339230521043845e-08, 1.7047535884249698e-08,
    -7.286380907337666e-09, 3.808399859919042e-09, -1.93094448758457e-09, 4.7575447057763774e-11,
    1.7887095838476466e-10, 8.133913205464115e-10, -5.541051446065682e-10, -3.1199361296821053e-10,
    2.2137580975910077e-10, 1.0926983537268735e-10, -6.910453875670571e-11,
)
K1_NEAR = (
    0.8850882877295894, -0.3322409552403131, -0.24383852886774332, -0.02785423521977184, -0.001383168846618116,
    -3.891869064371633e-05, -7.081133691517408e-07, -9.03212750174068e-09, -8.533634168575142e-11,
    -6.214271617329577e-13,
)
K1_FAR = (
    1.363151890371342, 0.10334973775386523, -0.005566729880074588, 0.0007357241549081501, -0.00013959021956272223,
    3.284386555825453e-05, -8.961207387750025e-06, 2.730041433569803e-06, -9.067087633371393e-07,
    3.2298119177151824e-07, -1.2203186351938403e-07, 4.846195220009187e-08, -1.9817577141591116e-08,
    8.40938756536177e-09, -4.331939985658628e-09, 2.175778202583717e-09, -8.336227195991475e-11,
    -1.7982138496175005e-10, -8.908596710923906e-10, 6.042482293782837e-10, 3.386780416780801e-10,
    -2.399376595899464e-10, -1.1931668393112158e-10, 7.52479548635394e-11,
)
J0_NEAR = (
    0.045829664859813775, 0.9303012472958571, -0.6484692830871835, -0.8080888076696872, 1.038379461143721,
    -0.5074680458471, 0.14598884856759264, -0.028472718610882044, 0.004058078989140991, -0.0004435459224311503,
    3.8473197855944365e-05, -2.717749223632098e-06, 1.5956109104549218e-07, -7.91532308295207e-09,
    3.3634475788173604e-10, -1.243301171273326e-11, 4.0037632815796753e-13,
)
J1_NEAR = (
    -0.05814382795599108, 0.08105866038589796, 0.1515166514380664, -0.2595948652859303, 0.1585837643272184,
    -0.05474581821284722, 0.012456814392263376, -0.0020290394945706, 0.00024949458135972605, -2.404574865968694e-05,
    1.868452603720601e-06, -1.1967081867878014e-07, 6.431190177265835e-09, -2.943013798001659e-10,
    1.1658972367678622e-11, -4.0045728425886457e-13,
)
Y0_NEAR = (
    -0.382250654459425, -0.8284358903604587, 1.6470964788745466, 0.14412632369302464, -1.0775477338215995,
    0.672177078343168, -0.21895747096171628, 0.046367047681375125, -0.00702574105727097, 0.000806158605961636,
    -7.279541882454115e-05, 5.321318810399714e-06, -3.2185078445935923e-07, 1.6390875014077404e-08,
    -7.13046146536789e-10, 2.6926938054524057e-11, -8.840112096073101e-13,
)
Y1_NEAR = (
    0.07075985882118005, -0.24337743079193114, 0.023367571720993473, 0.23507209206669752, -0.19639839859930203,
    0.07854786922242532, -0.01962875683311711, 0.0034224907399188495, -0.0004438173434420147, 4.467433012646365e-05,
    -3.601000022590458e-06, 2.3804930420514175e-07, -1.3153147367094951e-08, 6.169688029066965e-10,
    -2.499531546171249e-11, 8.760001143977853e-13,
)
P0_FAR = (
    0.9994572757882519, -0.0005363673192129672, 6.137416080109497e-06, -2.0527448261170675e-07, 1.2803761440800919e-08,
    -1.2121098178951377e-09, 1.55005654966326e-10, -2.4911465354716663e-11, 4.786995821368027e-12,
    -1.0157485021065676e-12, 2.4531772967345006e-13, -1.0251790052831013e-13, 3.339452259070809e-14,
)
Q0_FAR = (
    -0.12444091103610815, 0.0005466519279475266, -1.1817110661200974e-05, 5.684971881753781e-07, -4.534972837363434e-08,
    5.146231602705606e-09, -7.5763304988972e-10, 1.3623497617833053e-10, -2.8707211071105143e-11, 6.951785915752244e-12,
    -1.8736407435432956e-12, 4.605060470396763e-13, -1.3137515498826537e-13, 1.0185094098694355e-13,
    -4.0574096424030336e-14,
)
P1_FAR = (
    1.0009070262780821, 0.0008988049416705183, -7.9596946984383e-06, 2.453676633366693e-07, -1.4708512991275258e-08,
    1.3602969253877949e-09, -1.713107485294131e-10, 2.7234512682813397e-11, -5.191158004646548e-12,
    1.0954826479277623e-12, -2.6335760672461096e-13, 1.0923713653079462e-13, -3.5455617466606254e-14,
)
Q1_FAR = (
    0.3742149922195918, -0.0007697167057643707, 1.4569614809851413e-05, -6.633568561050815e-07, 5.136105997071193e-08,
    -5.720890888840857e-09, 8.316077350038262e-10, -1.4816588916791197e-10, 3.100364837230575e-11,
    -7.465104477698295e-12, 2.0027287747665844e-12, -4.915740629676551e-13, 1.399626445347197e-13,
    -1.0759215471978615e-13, 4.275621822194818e-14,
)


# aten::special_airy_ai
#
#     |x| ≤ 4    a polynomial of x/4
#     x > 4      Ai(x) = e^-ζ / (2·√π·x^¼) · R                                     ζ = ⅔·|x|^1.5
#     x < -4     Ai(x) = (sin(ζ + π/4)·P - cos(ζ + π/4)·Q) / (√π·|x|^¼)
#
# R is a polynomial of 1/ζ, P and ζ·Q of 1/ζ², each brought to [-1, 1] and interpolated with mpmath at Chebyshev's
# points.
#
# Source of truth: ATen's native/Math.h: zero above 103.892, and NaN at both infinities.

_END = 4.0
_ZETA = 2 / 3 * _END**1.5
# fmt: off
_MIDDLE = (
    0.3550280538878173, -1.035277615171227, 7.955068969759426e-16, 3.786965908136717, -5.52148061424664,
    1.0351647844957743e-14, 8.078860604029066, -8.413684745518898, -9.197898771490929e-11, 7.181209425806927,
    -5.983064706658465, -8.708965084352035e-11, 3.4817984979392813, -2.4545906486527596, 7.355882748543066e-08,
    1.061119541075624, -0.6545578464463374, 2.1515727073704504e-08, 0.22193466645372809, -0.12249036874808258,
    -3.019529889768257e-06, 0.03381863977353246, -0.01696241148152935, -4.1983972328989134e-07, 0.003912080467284713,
    -0.0018092781550537345, 1.0087021814477945e-05, 0.0003566153181311239, -0.00016175558943473203,
    8.230149419967601e-07, 3.153824679754974e-05, -1.1145032423512903e-05, -2.230538739699928e-06,
    1.915779559782283e-06, -1.5706447395127533e-09, -1.2081566560270377e-07,
)
_RIGHT = (
    0.9937884146228121, -0.005937085315977871, 0.00025291100426907666, -1.9231955815334838e-05, 2.0356518992484614e-06,
    -2.697624305346259e-07, 4.2233834926560903e-08, -7.533807490696474e-09, 1.493967972727171e-09,
    -3.236226474190882e-10, 7.592736131029209e-11, -1.8984738361258796e-11, 4.612302036005531e-12,
    -1.2399581399333612e-12, 6.043649849307792e-13, -1.9405408684793942e-13,
)
_P = (
    0.999363720981151, -0.0006209941418019416, 1.4258707704202032e-05, -9.054529720196242e-07, 1.0042141850557856e-07,
    -1.5925134157474398e-08, 3.241545739475139e-09, -7.938135001056149e-10, 2.2418198239897425e-10,
    -6.96436403087975e-11, 2.360915764237545e-11, -1.1002442862433136e-11, 5.007050538194751e-12,
    2.2103630245487523e-13, -4.907191544829304e-13, -1.0992152516140823e-12, 6.271597555609459e-13,
)
_Q = (
    0.0688085741766544, -0.0006071316848869089, 2.6011127080243395e-05, -2.3247007302733242e-06, 3.229739057938273e-07,
    -6.030167966064036e-08, 1.3918092556485582e-08, -3.768710626282985e-09, 1.1561114150371971e-09,
    -3.9105837821079025e-10, 1.433534811539447e-10, -5.953716438186271e-11, 2.6357340107443087e-11,
    -5.50298739759466e-12, 4.375221811175159e-13, -8.065123708443022e-12, 5.8084773400279245e-12,
    3.2467312739223228e-12, -2.5742724427964975e-12, -1.3647556331014607e-12, 9.283456439366537e-13,
)


# fmt: on


def airy_ai(x: Tensor) -> Tensor:
    """Ai(x) of float64."""
    size = torch.abs(x)
    high = instead(size, size < _END, _END)
    root = torch.sqrt(high)
    zeta = 2 / 3 * high * root
    scale = 1 / (math.sqrt(math.pi) * torch.sqrt(root))
    right = scale / 2 * torch.exp(-zeta) * polynomial(2 * _ZETA / zeta - 1, _RIGHT)
    t, angle = 2 * (_ZETA / zeta) ** 2 - 1, zeta + math.pi / 4
    left = scale * (torch.sin(angle) * polynomial(t, _P) - torch.cos(angle) * polynomial(t, _Q) / zeta)
    middle = polynomial(instead(x, size > _END, 0.0) / _END, _MIDDLE)
    outer = torch.where(x < 0, left, torch.where(x > 103.892, torch.zeros_like(x), right))
    return nan_where(torch.isinf(x), torch.where(size <= _END, middle, outer))


composes("aten::special_airy_ai.default")(in_double(airy_ai))
