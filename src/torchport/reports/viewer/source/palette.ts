// Colors: of operators by what they do, of overlays by how much, in the light and the dark.

const KINDS: Record<string, string[]> = {
  product: [
    "Conv",
    "ConvTranspose",
    "ConvInteger",
    "DeformConv",
    "Gemm",
    "MatMul",
    "MatMulInteger",
    "Einsum",
    "QLinearConv",
    "QLinearMatMul",
    "MatMulNBits",
    "FusedConv",
    "FusedMatMul",
  ],
  attention: ["Attention", "MultiHeadAttention", "GroupQueryAttention", "LSTM", "GRU", "RNN", "RotaryEmbedding"],
  activation: [
    "Relu",
    "LeakyRelu",
    "PRelu",
    "Sigmoid",
    "Tanh",
    "Gelu",
    "Elu",
    "Selu",
    "Celu",
    "HardSigmoid",
    "HardSwish",
    "Softmax",
    "LogSoftmax",
    "Softplus",
    "Softsign",
    "Erf",
    "Clip",
    "Mish",
    "Swish",
    "ThresholdedRelu",
  ],
  norm: [
    "BatchNormalization",
    "LayerNormalization",
    "InstanceNormalization",
    "GroupNormalization",
    "RMSNormalization",
    "LRN",
    "LpNormalization",
    "MeanVarianceNormalization",
    "SkipLayerNormalization",
    "SimplifiedLayerNormalization",
  ],
  pool: [
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "LpPool",
    "ReduceMean",
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL2",
    "ArgMax",
    "ArgMin",
    "TopK",
    "Resize",
    "Upsample",
  ],
  shape: [
    "Reshape",
    "Transpose",
    "Concat",
    "Split",
    "Slice",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Gather",
    "GatherND",
    "GatherElements",
    "ScatterND",
    "ScatterElements",
    "Expand",
    "Tile",
    "Pad",
    "Shape",
    "Size",
    "Range",
    "Identity",
    "ConstantOfShape",
    "DepthToSpace",
    "SpaceToDepth",
  ],
  control: [
    "If",
    "Loop",
    "Scan",
    "SequenceAt",
    "SequenceInsert",
    "SequenceConstruct",
    "ConcatFromSequence",
    "SplitToSequence",
  ],
  type: ["Cast", "CastLike", "QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"],
};
const KIND_OF = new Map(
  Object.entries(KINDS).flatMap(([kind, names]) => names.map((name): [string, string] => [name, kind])),
);

export interface Theme {
  dark: boolean;
  paper: string;
  ink: string;
  faint: string;
  line: string;
  boxes: string[];
  border: string;
  accent: string;
  kinds: Record<string, string>;
}

const LIGHT: Theme = {
  dark: false,
  paper: "#fbfbfa",
  ink: "#1c1f23",
  faint: "#6a7178",
  line: "#9aa3ac",
  border: "#c3c9cf",
  accent: "#0b66d0",
  boxes: ["#f1f3f5", "#e9ecef", "#e1e5e9", "#d9dee3"],
  kinds: {
    product: "#cfe2fb",
    attention: "#dcd6fb",
    activation: "#f9d3cf",
    norm: "#cfeadb",
    pool: "#cdeaea",
    shape: "#f4e6c6",
    control: "#f3d3ee",
    type: "#e3e0c9",
    other: "#e7eaed",
    input: "#d7efd0",
    output: "#ffd9b8",
    module: "#ffffff",
  },
};
const DARK: Theme = {
  dark: true,
  paper: "#16181b",
  ink: "#eceff1",
  faint: "#9aa3ab",
  line: "#67707a",
  border: "#49515a",
  accent: "#62aaff",
  boxes: ["#1f2327", "#262b30", "#2d3339", "#343b42"],
  kinds: {
    product: "#234a78",
    attention: "#463c85",
    activation: "#7a332c",
    norm: "#245c40",
    pool: "#1f5a5d",
    shape: "#6a5422",
    control: "#6b3263",
    type: "#55522f",
    other: "#3b4249",
    input: "#33612a",
    output: "#7d4a1c",
    module: "#2b3036",
  },
};

export function theme(): Theme {
  return matchMedia("(prefers-color-scheme: dark)").matches && !matchMedia("print").matches ? DARK : LIGHT;
}

export function kindOf(operator: string): string {
  return KIND_OF.get(operator.slice(operator.lastIndexOf(":") + 1)) ?? "other";
}

// From little to much, even to the eye and without red beside green: after matplotlib's "cividis" and "YlOrRd".
const HEAT_LIGHT: [number, number, number][] = [
  [255, 247, 214],
  [254, 217, 118],
  [253, 141, 60],
  [214, 47, 39],
  [128, 0, 38],
];
const HEAT_DARK: [number, number, number][] = [
  [52, 48, 40],
  [112, 80, 30],
  [190, 96, 28],
  [232, 80, 60],
  [255, 180, 170],
];

// Kinds of a difference, apart for eyes that do not tell red from green: after Okabe and Ito.
const STATES: Record<string, [string, string]> = {
  renamed: ["#cfe0f5", "#27496d"],
  changed: ["#f6c453", "#8a6200"],
  added: ["#7fcfa0", "#1d6b45"],
  quantized: ["#7fcfa0", "#1d6b45"],
  float: ["#f6c453", "#8a6200"],
};

export function stateColor(kind: string, dark: boolean): { fill: string; ink: string } {
  const [light, night] = STATES[kind] ?? ["#d5d9dd", "#50585f"];
  return { fill: dark ? night : light, ink: dark ? "#ffffff" : "#1c1f23" };
}

/** The color of a part between 0 and 1, and that of text on it. */
export function heat(part: number, dark: boolean): { fill: string; ink: string } {
  const stops = dark ? HEAT_DARK : HEAT_LIGHT;
  const at = Math.max(0, Math.min(1, part)) * (stops.length - 1);
  const n = Math.min(Math.floor(at), stops.length - 2);
  const color = stops[n]!.map((c, i) => Math.round(c + (stops[n + 1]![i]! - c) * (at - n)));
  const light = 0.299 * color[0]! + 0.587 * color[1]! + 0.114 * color[2]!;
  return { fill: `rgb(${color.join(",")})`, ink: light > 140 ? "#1c1f23" : "#ffffff" };
}
