// What the page needs beside NiceGUI; everything else is drawn by the server.
window.addEventListener("beforeunload", (event) => {
  if (window.plafondDirty) event.preventDefault();
});
