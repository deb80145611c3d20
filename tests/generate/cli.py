#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# The program `generate` as a user or a script sees it: JSON Lines, texts, the progress line, exit statuses.
import json
import os
import pty
import subprocess
import sys

GENERATE = sys.argv[1]
JOB = ['prompt', 'text', 'prompt_tokens', 'gen_tokens', 'prompt_tokens_s', 'gen_tokens_s', 'latency_ms', 'pages', 'prefix_hits']


def run(*args, **options):
    options = {'stdout': subprocess.PIPE, 'stderr': subprocess.PIPE, 'timeout': 300, **options}
    return subprocess.run([GENERATE, *args], **options)


def lines(*args):
    done = run(*args, '--json')
    assert done.returncode == 0 and done.stderr == b'', done
    return [json.loads(line) for line in done.stdout.decode('utf-8').splitlines()]


def json_lines():
    prompts = [b'And it came "to" pass\n', b'\xff\xfe A wise man']
    *jobs, total = lines('--prompt', prompts[0], '--prompt', prompts[1], '-n', '7')
    assert len(jobs) == 2 and [list(job) for job in jobs] == [JOB, JOB], jobs
    assert [job['prompt'] for job in jobs] == [prompts[0].decode(), '\ufffd\ufffd A wise man'], jobs
    for job in jobs:
        assert job['text'] and job['gen_tokens'] <= 7 and job['prompt_tokens'] > 3 and job['pages'] in (1, 2), job
        assert min(job[name] for name in JOB[4:7]) > 0 and job['prefix_hits'] == 0, job
    assert list(total) == ['total_gen_tokens_s', 'total_prompt_tokens_s'] and min(total.values()) > 0, total
    one = lines('--prompt', 'A wise man', '-n', '1')[0] # no time lies between its first token and its last
    assert one['gen_tokens'] == 1 and one['gen_tokens_s'] is None, one


def loss(folder):
    path = os.path.join(folder, 'generate-cli-text')
    with open(path, 'wb') as f:
        f.write(b'In the beginning God created the heaven and the earth.')
    (line,) = lines('--nll', path)
    assert list(line) == ['nll', 'tokens'] and 1 < line['nll'] < 5 and 10 < line['tokens'] < 30, line
    text = run('--nll', path)
    assert text.returncode == 0 and text.stdout == b'nll %.5f over %d tokens\n' % (line['nll'], line['tokens']), text
    os.unlink(path)


def texts():
    want = [job['text'] for job in lines('--prompt', 'A wise man', '--prompt', 'Blessed are they', '-n', '9')[:-1]]
    done = run('--prompt', 'A wise man', '--prompt', 'Blessed are they', '-n', '9')
    assert done.stdout.decode() == f'A wise man{want[0]}\n\nBlessed are they{want[1]}\n', done
    assert done.stderr.startswith(b'2 prompts of ') and b'18 generated in ' in done.stderr, done


def terminal():
    ours, theirs = pty.openpty()
    done = run('--prompt', 'And it came to pass in those days, that ' * 6, '-n', '4', '--chunk', '20', stderr=theirs)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    assert done.returncode == 0 and '\r\033[K1/1: 20 of ' in shown and '\r\033[K1/1: 40 of ' in shown, shown
    assert '1 prompts of ' in shown.split('\r\033[K')[-1], shown


def statuses():
    assert run('--help').stdout.startswith(b'usage: generate ')
    for status, *args in [(0, '--help'), (2,), (2, '--frob'), (2, '--prompt', 'a', '--kv-type', 'f64'), (1, '--prompt', ''),
                          (1, '--prompt', 'a', '--model', '/nowhere'), (1, '--prompt', 'a', '-n', '9999'),
                          (1, '--prompt', 'a', '--device', 'nosuchdevice')]:
        done = run(*args)
        assert done.returncode == status, (args, done)
        assert status == 0 or (done.stdout == b'' and b'generate: ' in done.stderr), (args, done)
    with open('/dev/full', 'wb') as full:
        done = run('--prompt', 'a', '-n', '1', stdout=full)
    assert done.returncode == 1 and b'stdout: ' in done.stderr, done


json_lines()
loss(sys.argv[2])
texts()
terminal()
statuses()
