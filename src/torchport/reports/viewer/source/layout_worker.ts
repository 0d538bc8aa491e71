// The worker: a block comes in, a plan goes out.

import { arrange, type Block } from "./arrange.ts";

interface Port {
  onmessage: (event: MessageEvent<{ number: number; block: Block }>) => void;
  postMessage(message: unknown, transfer: Transferable[]): void;
}
const port = self as unknown as Port;

port.onmessage = (event) => {
  const { number, block } = event.data;
  const plan = arrange(block);
  port.postMessage({ number, plan }, [plan.boxes.buffer, plan.ends.buffer, plan.starts.buffer, plan.points.buffer]);
};
