/* Shows Carrel's notices as notifications of JupyterLab, with a countdown, what happens then, and a link.

JupyterLab loads this file as it is. A federated module is an object with `init` and `get`, and everything that this one
needs of JupyterLab is among its commands: so there is nothing to build, and no module to share. */
(() => {
  const NAME = "carrel-gpu-notebook";
  const OPEN = `${NAME}:open`;
  const ASK_MS = 5_000;
  const LONGEST_MS = 30_000;
  const SECOND_MS = 1_000;
  const CLOSING_MS = 5_000;
  const LOOK_MS = 100;
  const SEEN = `${NAME}:seen`;

  /* `2:05`, `1:00:00`; empty once the time is over. */
  function countdown(ms) {
    const all = Math.ceil(ms / SECOND_MS);
    const [hours, minutes, seconds] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
    const two = (number) => String(number).padStart(2, "0");
    return all <= 0 ? "" : hours ? `${hours}:${two(minutes)}:${two(seconds)}` : `${minutes}:${two(seconds)}`;
  }

  /* JupyterLab shows a message some time after it was told. One that is dismissed before that comes back, and stays. */
  async function onScreen(id, message) {
    const [words] = message.split("\n");
    for (let waited = 0; waited < CLOSING_MS; waited += LOOK_MS) {
      if (document.getElementById(id)?.textContent.includes(words)) return;
      await new Promise((done) => window.setTimeout(done, LOOK_MS));
    }
  }

  class Notices {
    constructor(app) {
      this.app = app;
      this.notice = this.id = this.told = "";
      this.isAsking = this.wasOpen = this.isClosed = false;
      this.due = null; // by this page's own clock, which need not be right
      this.box = null;
      this.clickedAt = -Infinity;
    }

    /* One after the other, also where an answer takes long: until a notice is shown, nothing can take it away. */
    async ask() {
      if (this.isAsking) return;
      this.isAsking = true;
      try {
        const { baseUrl, token, init, fetch } = this.app.serviceManager.serverSettings;
        const headers = token ? { Authorization: `token ${token}` } : {};
        const signal = AbortSignal.timeout(LONGEST_MS);
        const answer = await fetch(`${baseUrl}carrel/notice`, { ...init, headers, signal, cache: "no-store" });
        if (answer.ok) await this.show(await answer.json());
      } finally {
        this.isAsking = false;
      }
    }

    async show({ notice, seconds_left: left, link }) {
      this.due = left === null ? null : performance.now() + left * SECOND_MS;
      if (notice === this.notice) return;
      const [gone, told] = [this.id, this.told];
      this.notice = notice;
      this.id = "";
      this.wasOpen = this.isClosed = false;
      if (gone) {
        await onScreen(gone, told);
        await this.app.commands.execute("apputils:dismiss-notification", { id: gone });
      }
      if (!notice || this.wasSeen(notice)) return;
      const actions = link ? [{ label: link.label, commandId: OPEN, args: { url: link.url } }] : [];
      const options = { autoClose: false, actions };
      const type = this.due === null ? "info" : "warning";
      const message = (this.told = this.text());
      this.id = await this.app.commands.execute("apputils:notify", { message, type, options });
    }

    /* What has happened is told once; what is going to happen, in each window. */
    wasSeen(notice) {
      if (this.due !== null) return false;
      const seen = window.localStorage.getItem(SEEN) === notice;
      window.localStorage.setItem(SEEN, notice);
      return seen;
    }

    text() {
      const said = this.notice[0].toUpperCase() + this.notice.slice(1);
      return this.due === null ? said : `${countdown(this.due - performance.now()) || "Now"}\n${said}`;
    }

    async tick() {
      if (!this.id || this.due === null || this.isClosed) return;
      // An update would show it again after the person has closed it, also while it goes out of sight.
      const box = document.getElementById(this.id);
      if (box !== this.box) box?.addEventListener("click", () => (this.clickedAt = performance.now()), true);
      this.box = box;
      if (performance.now() - this.clickedAt < CLOSING_MS) return;
      this.isClosed = this.wasOpen && box === null;
      this.wasOpen = box !== null;
      if (box === null) return;
      const message = (this.told = this.text());
      const update = { id: this.id, message, type: "warning", autoClose: false };
      await this.app.commands.execute("apputils:update-notification", update);
    }
  }

  /* While the server is away there is nothing to say: JupyterLab says that itself. */
  const quietly = (what) => () => what().catch(() => undefined);

  function activate(app) {
    app.commands.addCommand(OPEN, {
      label: "Open the booking service",
      execute: ({ url }) => void window.open(url, "_blank", "noopener"),
    });
    const notices = new Notices(app);
    // JupyterLab waits for all plugins before it is restored: so this one does not wait for it.
    void app.restored.then(quietly(() => notices.ask())).then(() => {
      window.setInterval(quietly(() => notices.ask()), ASK_MS);
      window.setInterval(quietly(() => notices.tick()), SECOND_MS);
    });
  }

  const plugin = { id: `${NAME}:notices`, description: "Shows Carrel's notices.", autoStart: true, activate };
  const module = { __esModule: true, default: plugin };
  window._JUPYTERLAB = window._JUPYTERLAB || {};
  window._JUPYTERLAB[NAME] = { init: () => undefined, get: async () => () => module };
})();
