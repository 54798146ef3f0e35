/* From disk, browsers start no workers. This stand-in runs the worker of the search in a hidden frame of the page. */
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super()
    const frame = document.createElement("iframe")
    frame.hidden = true
    document.body.append(frame)
    const inner = frame.contentWindow
    /* What the worker posts arrives at this object. */
    inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
    this.loaded = new Promise(resolve => {
      const script = inner.document.createElement("script")
      script.src = new URL(url, document.baseURI)
      script.onload = () => resolve(inner)
      inner.document.body.append(script)
    })
  }

  postMessage(data) {
    this.loaded.then(inner => inner.dispatchEvent(new MessageEvent("message", { data })))
  }

  terminate() {}
}
if (location.protocol === "file:") window.Worker = window.IFrameWorker
