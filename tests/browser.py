"""A server of the page and a headless browser, for tests that do what people do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import (
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

PATIENCE = 60.0
NOT_YET = (
    AssertionError,
    ElementClickInterceptedException,
    ElementNotInteractableException,
    NoSuchElementException,
    StaleElementReferenceException,
)
EDITOR = "document.querySelector('.cm-content').cmView.view"


@contextmanager
def server(home: Path, *options: str) -> Iterator[str]:
    """The page's address, served by a process of its own."""
    command = [sys.executable, "-m", "plafond", "ui", "--port", "0", "--home", str(home), *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            first = process.stdout.readline()
            assert "http://" in first, first
            yield first.split()[-1].rstrip("/")
        finally:
            process.terminate()
            process.wait(20)


@contextmanager
def chromium(
    language: str = "en", size: tuple[int, int] = (1440, 1000), downloads: Path | None = None
) -> Iterator[Page]:
    """A browser window."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if binary is None or driver is None:
        pytest.skip("no chromium and chromedriver on this machine (Debian: chromium, chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
        *("--disable-background-networking", "--disable-extensions", "--force-device-scale-factor=1"),
        *(f"--window-size={size[0]},{size[1]}", f"--lang={language}", f"--accept-lang={language}"),
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    options.set_capability("unhandledPromptBehavior", "accept")
    if downloads is not None:
        options.add_experimental_option("prefs", {"download.default_directory": str(downloads)})
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield Page(browser)
    finally:
        browser.quit()


class Page:
    """What a person sees and does; everything is waited for."""

    def __init__(self, browser: webdriver.Chrome):
        self.browser = browser
        self.base = ""

    def open(self, path: str) -> None:
        """Go to a view, and wait until the server has taken it up."""
        self.browser.get(self.base + path)
        self.until(
            lambda: self.script("return !!window.socket?.connected || !!document.querySelector('main')")
        )

    def script(self, text: str, *arguments: Any) -> Any:
        """Run a piece of JavaScript."""
        return self.browser.execute_script(text, *arguments)

    def until(self, found: Callable[[], Any], patience: float = PATIENCE) -> Any:
        """What `found` gives once it is true."""
        end = time.monotonic() + patience
        while True:
            try:
                if answer := found():
                    return answer
                problem: Exception | None = None
            except NOT_YET as error:
                problem = error
            if time.monotonic() > end:
                raise AssertionError(f"waited {patience:.0f} s in vain; {self.seen()}") from problem
            time.sleep(0.05)

    def seen(self) -> str:
        """Address and text of the page, for messages."""
        text = self.browser.find_element(By.TAG_NAME, "body").text
        return f"{self.browser.current_url}: {text[:3000]}"

    def all(self, test: str) -> list[WebElement]:
        """Elements by their mark for tests."""
        return self.browser.find_elements(By.CSS_SELECTOR, f'[data-test="{test}"]')

    def get(self, test: str) -> WebElement:
        """The visible element of that mark."""
        found: WebElement = self.until(
            lambda: next((one for one in self.all(test) if one.is_displayed()), None)
        )
        return found

    def text(self, test: str) -> str:
        """Text of an element."""
        return str(self.until(lambda: self.get(test).text))

    def value(self, test: str) -> str:
        """What a field holds."""
        return str(self.get(test).get_attribute("value"))

    def click(self, test: str) -> None:
        """Click, once it can be clicked."""

        def clicked() -> bool:
            element = self.get(test)
            self.script("arguments[0].scrollIntoView({block: 'center'})", element)
            place = element.rect
            time.sleep(0.05)  # dialogs fly in
            assert element.rect == place
            element.click()
            return True

        self.until(clicked)

    def type(self, test: str, text: str) -> None:
        """Replace what a field holds."""
        element = self.get(test)
        self.script("arguments[0].scrollIntoView({block: 'center'})", element)
        # in one go: a menu that has just closed takes the focus back, and the selection would be gone with it
        element.send_keys(Keys.CONTROL, "a", Keys.NULL, text or Keys.DELETE)

    def choose(self, test: str, option: str) -> None:
        """Take one of a field's options."""

        def opened() -> bool:
            field = self.get(test).find_element(
                By.XPATH, "./ancestor-or-self::*[contains(@class, 'q-field ')][1]"
            )
            self.script("arguments[0].scrollIntoView({block: 'center'})", field)
            field.click()
            return True

        def taken() -> bool:
            items = self.browser.find_elements(By.CSS_SELECTOR, ".q-menu .q-item")
            next(one for one in items if one.text.strip() == option).click()
            return True

        self.until(opened)
        self.until(lambda: self.browser.find_elements(By.CSS_SELECTOR, ".q-menu .q-item"))
        try:
            taken()
        except (*NOT_YET, StopIteration):
            self.until(taken)
        self.until(lambda: not self.browser.find_elements(By.CSS_SELECTOR, ".q-menu .q-item"))

    def job_text(self) -> str:
        """What the editor of the job file holds."""
        self.until(lambda: self.browser.find_elements(By.CSS_SELECTOR, ".cm-content"))
        return str(self.script(f"return {EDITOR}.state.doc.toString()"))

    def edit_text(self, old: str, new: str) -> None:
        """Replace a piece of the job file, as if it were typed."""
        at = self.job_text().index(old)
        change = {"from": at, "to": at + len(old), "insert": new}
        self.script(f"{EDITOR}.dispatch({{changes: arguments[0], scrollIntoView: true}})", change)

    def problems(self) -> list[str]:
        """What the browser has complained about."""
        log = self.browser.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in log if entry["level"] == "SEVERE"]
