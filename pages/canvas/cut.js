// A stream that broke and cannot be taken up again. It began, so the agent has the message, whatever came of it.

/** Why there is no more of a stream; `cause` is what the last attempt to come back met. */
export class Cut extends Error {
  constructor(cause) {
    super("the connection broke, and the stream cannot be taken up again", { cause });
    this.name = "Cut";
  }
}

/** Why nothing more is heard of a message: the page that waited for its answer is gone. */
export class Left extends Error {
  constructor() {
    super("its task is not known, and its connection ended with the page");
    this.name = "Left";
  }
}
