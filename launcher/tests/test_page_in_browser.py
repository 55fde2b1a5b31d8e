"""The web page of the local Vertex in a real browser, while a real job runs."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

from launcher.tests import vertex

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
SWITCHES = (
    *("headless=new", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
    *("disable-background-networking", "disable-component-update", "disable-sync"),
)
SECONDS = 120  # for anything the page is to show
REPLICAS = ["workerpool0-0", "workerpool1-0", "workerpool1-1"]

NAME = "<img src=x onerror=\"document.title='owned'\"> [bold] digits"
LINE = "<script>document.title='owned'</script> \x1b[31mred\x1b[0m"

# What the chief and two workers run: a loss five times a second until the file "finish" of a bucket is there.
SCRIPT = f"""
import json, os, pathlib, time
print({LINE!r})
step = 0
while not pathlib.Path(os.environ["GCS_MOUNT"], "finish").exists():
    step += 1
    if os.environ["RANK"] == "0":
        print(json.dumps({{"severity": "INFO", "message": f"step {{step}}", "step": step, "train/loss": 2 / step}}))
    time.sleep(0.2)
print("the end")
"""


# Four trials of a search: the third is worse than both before it, so it is stopped early, and the last one fails.
TRIAL = """
import json, os, sys, time
rate = float(sys.argv[1].partition("=")[2])
loss = {0.25: 0.5, 0.5: 0.25, 1: 1, 2: 0.125}[rate]
with open(os.environ["CLOUD_ML_HP_METRIC_FILE"], "w") as file:
    for step in (1, 2):
        print(json.dumps({"global_step": step, "timestamp": 1, "loss": loss / step}), file=file, flush=True)
if rate == 2: raise SystemExit("diverged")
while rate == 1: time.sleep(0.1)
"""
RATES = {"parameterId": "rate", "discreteValueSpec": {"values": [0.25, 0.5, 1, 2]}}
STUDY = {
    "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}],
    "parameters": [RATES],
    "algorithm": "GRID_SEARCH",
    "medianAutomatedStoppingSpec": {},
}
LEGEND = ["trial 1 0.25", "trial 2 (best) 0.125", "trial 3 (stopped early) 0.5", "trial 4 (failed) 0.0625"]


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for switch in (*SWITCHES, f"user-data-dir={tmp_path / 'profile'}", "window-size=1400,1000"):
        options.add_argument(f"--{switch}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


class Page:
    """What a person sees of the page."""

    def __init__(self, browser: webdriver.Chrome) -> None:
        self._browser = browser

    def text(self, selector: str) -> str:
        return self._browser.find_element(By.CSS_SELECTOR, selector).text

    def texts(self, selector: str) -> list[str]:
        script = "return [...document.querySelectorAll(arguments[0])].map(one => one.textContent)"
        return list(self._browser.execute_script(script, selector))

    def points(self) -> int:
        """How many points the first curve has."""
        script = "return document.querySelector('#charts path')?.getAttribute('d').split('L').length ?? 0"
        return int(self._browser.execute_script(script))

    def spills(self, width: int) -> bool:
        """Whether a window that is so narrow has something beyond its right edge."""
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self._browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        return bool(self._browser.execute_script("return document.documentElement.scrollWidth > innerWidth"))

    def until(self, holds: Callable[[], bool]) -> None:
        WebDriverWait(self._browser, SECONDS, poll_frequency=0.1).until(lambda _: holds())


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)")
def test_a_person_types_into_the_shell_of_a_replica(tmp_path: Path, browser: webdriver.Chrome) -> None:
    page = Page(browser)
    with vertex.service(tmp_path, "--grace-seconds", "0") as service:
        job = service.create(vertex.custom_job("sleep", "600", workers=1, enableWebAccess=True))
        browser.get(service.wait(job, "RUNNING")["webAccessUris"]["workerpool0-0"])
        page.until(lambda: page.text("pre").endswith(("#▏", "$▏", "# ▏", "$ ▏")))
        type_in = browser.find_element(By.TAG_NAME, "body").send_keys
        type_in("echo $RANK-oops", Keys.BACKSPACE * 4, "chief", Keys.ENTER)
        page.until(lambda: "\n0-chief\n" in page.text("pre"))
        type_in("sleep 500", Keys.ENTER, Keys.CONTROL, "c")
        page.until(lambda: "^C" in page.text("pre"))
        assert browser.title.startswith("workerpool0-0 of ")
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
        service.call("POST", f"/v1/{job}:cancel", {})
        page.until(lambda: "the shell has ended" in page.text("pre"))


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)")
def test_a_browser_sees_all_trials_of_a_search_on_one_chart(tmp_path: Path, browser: webdriver.Chrome) -> None:
    page, spec = Page(browser), vertex.custom_job(*vertex.script(TRIAL), scheduling={"disableRetries": True})["jobSpec"]
    counts = {"maxTrialCount": 4, "parallelTrialCount": 1}
    search = {"displayName": "study", "studySpec": STUDY, "trialJobSpec": spec, **counts}
    with vertex.service(tmp_path, "--grace-seconds", "0") as service:
        service.create(vertex.custom_job("true", name="another"))
        browser.get(service.endpoint)
        page.until(lambda: page.text("h2") == "another")
        service.wait(service.create(search, "hyperparameterTuningJobs"), "SUCCEEDED")
        page.until(lambda: page.texts("#rows a") == ["study", "another"])  # the trials are below their search
        browser.find_element(By.LINK_TEXT, "study").click()
        page.until(lambda: page.texts("#charts figcaption span") == LEGEND)
        assert len(page.texts("#charts figure")) == 1
        assert len(page.texts("#charts path:not(.end)")) == 4
        assert len(page.texts("#charts path.best")) == len(page.texts("#charts circle.best")) == 1
        assert len(page.texts("#charts path.end")) == 2  # of the trials that were stopped early and that failed
        assert page.texts("#trial-rows tr:nth-child(3) .state") == ["stopped early"]
        assert page.texts("#rows a") == ["study", "trial-4", "trial-3", "trial-2", "trial-1", "another"]
        assert not page.spills(360)
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]


@pytest.mark.slow
@pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (Debian: chromium-driver)")
def test_a_browser_sees_a_job_run_and_end(tmp_path: Path, browser: webdriver.Chrome) -> None:
    page = Page(browser)
    with vertex.service(tmp_path, "--grace-seconds", "0") as service:
        browser.get(service.endpoint)
        page.until(lambda: "No jobs yet" in page.text("#none"))
        service.create(vertex.custom_job(*vertex.script(SCRIPT), workers=2, name=NAME))
        page.until(lambda: page.texts("#rows a") == [NAME])
        browser.find_element(By.CSS_SELECTOR, "#rows a").click()

        page.until(lambda: page.text("#state") == "RUNNING")
        page.until(lambda: page.texts("#replica-rows tr td:first-child") == REPLICAS)
        page.until(lambda: page.points() >= 3)
        assert "train" in page.text("#charts figcaption")
        before = page.points(), len(page.texts("#log div"))
        page.until(lambda: page.points() > before[0] and len(page.texts("#log div")) > before[1])
        page.until(lambda: {*page.texts("#log b")} == {*REPLICAS})
        assert not page.spills(1600)
        assert not page.spills(360)

        (tmp_path / ".vertex/gcs/finish").touch()
        page.until(lambda: page.text("#state") == "SUCCEEDED")
        page.until(lambda: "the end" in page.texts("#log span"))
        assert page.text("h2") == NAME
        assert "<script>document.title='owned'</script> red" in page.texts("#log span")
        assert browser.title == f"{NAME} SUCCEEDED · Local Vertex"
        assert page.texts("main img, main script") == []
        assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]

        service.process.terminate()
        page.until(lambda: page.text("#gone").startswith("The service hasn't responded since"))
        assert page.text("#state") == "SUCCEEDED"
