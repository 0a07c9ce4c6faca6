// What happens at the gateway, as it happens: a WebSocket, opened with a ticket (docs/reference/events.md).

/** Between two attempts, in milliseconds: at first, and at most. */
const PAUSE_MIN = 1_000;
const PAUSE_MAX = 30_000;

/** The gateway pings every 30 s, which a page does not see; so what is dead shows when the socket closes. */
export class Live {
  #gateway;
  #hear;
  #tell;
  #socket = null;
  #timer = null;
  #last = null;
  #pause = PAUSE_MIN;
  #over = false;

  /**
   * `hear` gets each event; `tell` hears `"live"` and `"away"`. What is told with `"live"` may have changed while nobody
   * listened: events that only pass by (docs/reference/events.md) are not told again.
   */
  constructor(gateway, hear, tell) {
    this.#gateway = gateway;
    this.#hear = hear;
    this.#tell = tell;
  }

  /** Opens the socket, and again whenever it is lost. */
  async open() {
    let address;
    try {
      address = await this.#gateway.socket(this.#last);
    } catch (error) {
      return this.#later(error);
    }
    if (this.#over) return;
    // A ticket is good for one socket: each attempt has its own.
    const socket = new WebSocket(address);
    this.#socket = socket;
    socket.onopen = () => {
      this.#pause = PAUSE_MIN;
      this.#tell("live");
    };
    socket.onmessage = ({ data }) => {
      const event = JSON.parse(data);
      // A gap has no id; it says that something was missed, and so does the next "live".
      this.#last = event.id ?? null;
      this.#hear(event);
    };
    socket.onclose = () => this.#later();
  }

  /** Ends it for good. */
  close() {
    this.#over = true;
    clearTimeout(this.#timer);
    this.#socket?.close();
  }

  #later(error) {
    if (this.#over) return;
    this.#tell("away", error);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.open(), this.#pause);
    this.#pause = Math.min(this.#pause * 2, PAUSE_MAX);
  }
}
