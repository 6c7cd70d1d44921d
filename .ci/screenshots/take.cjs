// Takes the pictures of Dagster's pages that the documentation shows. `make screenshots` runs it, and pages.json says
// which page each shows.
//
// Arguments: the address of Dagster, the folder of the pictures, and the names of pictures.
const { chromium } = require('playwright-core');

const PAGES = require('./pages.json');

async function take(browser, base, folder, name) {
  const { url, w = 1400, h, until, click = [] } = PAGES[name];
  const page = await browser.newPage({ viewport: { width: w, height: h } });
  await page.goto(`${base}/${url}`, { waitUntil: 'domcontentloaded' });
  // Dagster's pages poll all the time, so that their network is never idle.
  await page.locator(until).first().waitFor({ timeout: 120000 });
  await page.locator('text=Loading…').first().waitFor({ state: 'hidden', timeout: 120000 });
  await page.waitForTimeout(5000);
  for (const selector of click) {
    await page.locator(selector).first().click({ timeout: 60000 });
    await page.waitForTimeout(3000);
  }
  await page.screenshot({ path: `${folder}/${name}.png` });
  await page.close();
}

async function main() {
  const [base, folder, ...names] = process.argv.slice(2);
  const path = process.env.CHROMIUM || '/usr/bin/chromium';
  const browser = await chromium.launch({ executablePath: path, args: ['--no-sandbox'] });
  let failed = 0;
  try {
    for (const name of names) {
      try {
        await take(browser, base, folder, name);
        console.log(`${folder}/${name}.png`);
      } catch (error) {
        failed = 1;
        console.error(`${name}: ${String(error.message).split('\n')[0]}`);
      }
    }
  } finally {
    await browser.close();
  }
  process.exitCode = failed;
}

main();
