"""Writes jinja-cases.json: templates, variables and the results of real Jinja2, in the environment that
transformers give chat templates. Needs `pip install jinja2` (made with 3.1.6). Tests read only the JSON."""

import json, os, sys
from jinja_environment import environment
env=environment()
tools=[{"type":"function","function":{"name":"get_weather","description":"Weather \"now\" in a <city> & more","parameters":{"type":"object","properties":{"city":{"type":"string","description":"Stadt, z.\u202fB. Zürich 漢字 😀"},"days":{"type":"integer","default":3,"minimum":-1.5}},"required":["city"]}}},
 {"type":"function","function":{"name":"noop","parameters":{"type":"object","properties":{}}}}]
call={"id":"call_1","type":"function","function":{"name":"get_weather","arguments":{"city":"Bern","days":2,"flags":[True,None,1e20]}}}
chat=[{"role":"system","content":" You are terse.\n"},{"role":"user","content":"Hi there  "},{"role":"assistant","content":"<think>\nhm\n</think>\n\nHello!"},{"role":"user","content":"Weather?\nNow."}]
agent=chat[:2]+[{"role":"assistant","content":None,"tool_calls":[call,{**call,"id":"call_2"}]},{"role":"tool","tool_call_id":"call_1","name":"get_weather","content":"{\"t\": 3}"},{"role":"tool","tool_call_id":"call_2","content":"<tool_response>"},{"role":"assistant","content":"Cold.","reasoning_content":"\nsnow\n"},{"role":"user","content":[{"type":"text","text":"and "},{"type":"image"},{"type":"text","text":"Bern?"}]}]
base=dict(bos_token="<s>",eos_token="</s>",add_generation_prompt=True,tools=None,messages=chat)
V={"x":None,"t":True,"f":1.5,"n":7,"s":"Hällo Wörld 😀 it's","l":[3,1,2],"d":{"b":1,"a":{"c":[1,"two",None]},"items":"own"},"e":[],
   "people":[{"name":"Bo","age":3,"on":True},{"name":"al","age":1,"on":False},{"name":"Cy","age":3}],"big":123456789012345678901234567890,"ws":"  \t a b \n ","ml":"one\ntwo\n\nthree\n"}
cases=[]
def add(name, template, **kw):
    vars_=dict(base if kw.pop("chat",False) else V); vars_.update(kw)
    c={"name":name,"template":template,"variables":vars_}
    try: c["expected"]=env.from_string(template).render(**vars_)
    except Exception as ex: c["fails"]=True; print("fails:", name, type(ex).__name__, ex, file=sys.stderr)
    cases.append(c)
exprs = r'''
x|t|f|n|s|l|d|e|big
[x, t, f, 'a', "it's", 'q"', 'both\'"', '\n\t\\', '\u00e9\x01']
(1,)|(1, 2)|()
{'a': 1, 'b': [True, none]}
messages_undefined
1 + 2 * 3 - 4 / 2|7 // 2|-7 // 2|-7 % 3|7 % -3|2 ** 10|2 ** -1|2 ** 3 ** 2|7.5 // 2|-7.5 % 2|1e16|1e15|1.0|0.0001|0.00001|1.5e-7|123456789.123|1/3|10 ** 20|-2 ** 2
'-' * 3|3 * 'ab'|[1, 2] * 2|'a' ~ 1 ~ none ~ true ~ 1.0|'a' + 'b'|[1] + [2]|(1,) + (2,)
'a' 'b'
l[::-1]|l[1:]|l[:-1]|l[-1]|l[5:]|s[::-1]|s[1:4]|s[-3:]|s[100:]|l[::2]|l[-100:100]|s[12]|l[0]|l.0
l[7] is defined|d['nope'] is defined|d.nope is defined|nope is defined|d.a.c[1]
d.items()|list|d['items']|d.b|d.get('b')|d.get('zz')|d.get('zz', 5)|d.keys()|list|d.values()|list
s.upper()|s.lower()|s.startswith('H')|s.endswith(('x', 's'))|s.split()|s.split(' ', 1)|s.replace('l', 'L', 1)|s.find('W')|s.title()|'a,b,,c'.split(',')|s.rsplit(' ', 1)|'abc'.capitalize()
ws.strip()|ws.lstrip()|ws.rstrip()|'xxaxx'.strip('x')|'</think>ab'.split('</think>')[-1]|'abcabc'.count('bc')|ml.splitlines()|', '.join(['a', 'b'])|'a-b'.partition('-')|'x'.center(6, '*')|'-7'.zfill(4)|'abc'.removeprefix('a')|'12'.isdigit()
'%s-%d' % ('a', 3)|'%05.1f' % 2.25|'%.2f' % 2.675|'%f' % 0.1|'%5s|' % 'a'|'%-5s|' % 'a'|'%x' % 255|'%s' % 'q'|'%s and %s'|format('x', 2)
1 == 1.0|1 == true|'a' < 'b'|[1, 2] < [1, 3]|1 < 2 < 3|none == none|'b' in d|'zz' not in d|2 in l|'it' in s|nope == none|nope in l
not t|t and ''|'' or 'z'|t and 5|none or 0|not none and t
'y' if t else 'n'|'y' if x|('y' if x) is defined|'a' if x else 'b' if f else 'c'
x is none|x is not none|s is string|d is mapping|l is iterable|s is iterable|s is sequence|d is sequence|f is number|t is number|n is integer|t is integer|t is boolean|f is float|t is true|n is true|n is odd|n is divisibleby 7|n is divisibleby(2)|2 is in l|'a' is eq 'a'|n is gt 3|n is ge(7)|s is lower|'AB' is upper|d.get is callable|x is sameas none|l is mapping|not x is none|x is none and t
ws|trim|s|length|l|length|d|count|l|join(', ')|l|join|people|join('/', attribute='name')|nope|default('d')|x|default('d')|''|default('d', true)|l|first|l|last|s|first|e|first is defined|s|upper|s|lower|s|title|'hello wORLD-foo (bar'|title|s|capitalize|s|replace('l', 'L')|s|replace('', '-')
l|list|s|list|d|list|people|map(attribute='name')|list|l|map('string')|list|people|map(attribute='on', default='?')|list|l|map('default', 1)|join|l|select('gt', 1)|list|l|reject('odd')|list|e|select|list|people|selectattr('on')|list|people|selectattr('age', 'equalto', 3)|map(attribute='name')|list|people|rejectattr('on', 'defined')|list|people|selectattr('on', 'defined')|list|length
l|sort|l|sort(reverse=true)|people|sort(attribute='name')|people|sort(attribute='age,name')|['b', 'A', 'c']|sort|['b', 'A', 'c']|sort(case_sensitive=true)|['a', 'A', 'b']|unique|list|l|reverse|list|s|reverse|d|dictsort|d|items|list|l|sum|l|max|l|min|people|map(attribute='age')|sum|l|batch(2)|list
'42'|int|'4.7'|int|'x'|int|'x'|int(-1)|3.9|int|'0x1f'|int(base=16)|'1.5'|float|'x'|float|n|float|2.5|round|3.5|round|2.675|round(2)|2.1|round(method='ceil')|2.19|round(1, 'floor')|5|round|-3|abs|-2.5|abs|f|string|t|string|none|string|s|safe|'<a>'|e|none|int(5)|true|int
d|tojson|d|tojson(indent=2)|[]|tojson(indent=4)|{}|tojson(indent=2)|s|tojson|'\u2028<\x7f\x01\b\f"\\/'|tojson|[1, 1.0, 1e22, true, none]|tojson|(1, 2)|tojson|d|tojson(separators=(',', ':'))|d|tojson(sort_keys=true)|{1: 2, 2.5: 3, none: 4, false: 5}|tojson|big|tojson|d|tojson(indent=1, separators=(', ', '='))
ml|indent|ml|indent(2, true)|ml|indent(2, blank=true)|ml|indent('> ')|''|indent
range(3)|list|range(1, 7, 2)|list|range(3, 0, -1)|list|dict(a=1, b='x')|namespace(a=1).a|strftime_now('%d %b %Y')|strftime_now('%A %-d %B %H:%M:%S %y %j %p')
"a" is defined and s is string|n in [1, 7]|-n|+n|-n|abs|(n - 3)|abs|n|abs + 1|l | length == 3|'x' ~ n + 1|n // 2 ~ 'q'|l[n - 6]|l[1:][0]|(1, 2)[0]|{'a': {'b': 2}}['a'].b|{'a': {'b': 2}}.a['b']|[[1, 2], [3]][0][1]
0x1F|1_000|0b11|0o17|1_0.5|.5 is defined
people|selectattr('nope', 'undefined')|list|length|e|sum|e|join|'a'|join(',')|s|wordcount|d|length|nope|length|nope|list|nope|upper|nope ~ 'a'|nope|tojson|nope.a|nope + 1|nope[0]|l.nope|l.nope.x|l['a']|s.nope|x.a|x['a']|x.a.b|1/0|'a' + 1|l + (1,)|len(l)|l.append(4)|d.update({})|d.pop('a')|s.__class__|x()|l|nofilter|l is notest|x < 1|for|e|select and 'true'|e|select|length|(e|select)[0]|range(200000)|raise_exception('no')|x + 1
'''
exprs += r'''
{"a":1}[nothing]|{"a":1}[["x"]]|{"a":1}[{}]|[1][nothing]|{"a":1}[["x"]] is defined|(d[nothing] or 'z')|d.get(nothing)|d.get(nothing, 4)|nothing in d|['x'] in d|d.get(['x'])|{['x']: 1}|{nothing: 1}
{(1, 'a'): 2}[(1, 'a')]|{(1, 'a'): 2}[1, 'a']|{(1, ['a']): 2}|{1: 2}[1.0]|{1: 2}[true]|{1.0: 2}[1]|{true: 'x'}[1]|{1: 'a', true: 'b', 1.0: 'c'}|{0.5: 1}[1/2]|1.0 in {1: 2}|{2 ** 70: 'x'}[2.0 ** 70]|{none: 1}[none]
d.items|list|d.append is defined|l.append is defined|l.append|d.pop is defined|d.clear|l.pop()|l.nope.x|d|attr('b')|d|attr('items') is callable|n.real|f.is_integer()|n.bit_length()|l.index(1)|(1, 2, 1).count(1)|range(5).stop
range(4)|range(1, 9, 3)|range(4)[1:]|range(9)[::2]|range(3) == range(0, 3, 1)|range(3) == [0, 1, 2]|range(3)|tojson|d.keys()|d.values()|d.items()|d.keys()[0]|d.keys()|last|d.keys() == ['b', 'a', 'items']|d.items() is sequence|d.items()|tojson|range(3)|last|range(10 ** 9)
none|map('upper')|list|nothing|map('upper')|list|none|selectattr('a')|list|0|select|list|5|map('string')|list|nothing|int|nothing|float|nothing|round|nothing|abs|nothing|indent|nothing|replace('a', 'b')|nothing|dictsort|nothing|items|list|nothing is callable|nothing is iterable|nothing is sequence|nothing is mapping
people|map(attribute='age.nope')|list|people|map('attr', 'x')|list|[{'a': 'x'}, {}]|map(attribute='a.b')|first|(l|map('nofilter')) is defined|l|map('nofilter')|list|[1, 'x']|map('abs')|first|l|select('notest')|first|(people|selectattr('age', 'equalto', 1)|first).name
people|groupby('age')|people|groupby('age')|map(attribute='grouper')|list|(people|groupby('age'))[0].list|length|people|groupby('on', default=false)|map('first')|list|['b', 'A', 'a']|groupby(0)|people|groupby('name', case_sensitive=true)|map(attribute=0)|list|[1, 2, 3, 4, 5]|slice(2)|list|[1, 2, 3, 4, 5]|slice(3, 'x')|list|l|slice(0)|list|[1, 2, 3]|batch(2, 'x')|list
'foo bar baz qux'|truncate(9)|'foo bar baz qux'|truncate(9, true)|'foo bar baz qux'|truncate(11)|'foo bar baz qux'|truncate(11, False, '...', 0)|'foo bar'|truncate(2)|'a b&c/ü?'|urlencode|{'a b': 'c&d', 'e': 1}|urlencode|[('x', 'y/z')]|urlencode|5|urlencode|{'class': 'a<b', 'n': none, 'x': 1}|xmlattr|1500|filesizeformat|1500|filesizeformat(true)|1|filesizeformat
s|tojson(ensure_ascii=true)|s|tojson(true)|{'ü': '漢 '}|tojson(ensure_ascii=true, indent=1)|d|tojson(indent='-')|d|tojson(indent=0)|{(1, 2): 3}|tojson|{1: 2, 'a': 3}|tojson(sort_keys=true)|nothing|tojson|[nothing]|tojson|l|tojson(separators='ab')|l|tojson(separators=[1, 2])
'{} {}'.format(1, 'a')|'{1} {0}'.format(1, 'a')|'{a} {b!r}'.format(a=1, b='x')|'{0[a]} {0.b} {1[0]}'.format({'a': 1, 'b': 2}, 'xy')|'{:>8}|{:<4}|{:^5}'.format('ab', 1, 2)|'{:08.3f} {:+d} {:,} {:x} {:#o} {:b} {:e} {:%} {:g}'.format(3.14159, 5, 1234567, 255, 8, 5, 12345.678, 0.25, 1e20)|'{:{}}'.format('a', 5)|'{{}}'.format()|'{}'.format()|'{} {0}'.format(1)|'{nope}'.format(a=1)|'{.__class__}'.format(1)|'{0.__class__}'.format(1)|'{:d}'.format('a')|'{:5}'.format(none)|'{a}'.format_map({'a': 3})|'{:_}'.format(1000000)|'{:015,}'.format(1234567)|'{:.3}'.format('abcdef')|'{}'.format(nothing)
'%(a)s %(b)05d' % {'a': 1, 'b': 2}|'%5.1f|%-8s|%+d|%x|%o|%e|%g|%c|%r|%a|%%' % (1.25, 'a', 3, 255, 8, 12345.6789, 1e-5, 'x', 'y', 'ü')|'%s' % nothing|'%d' % 3.7|'%d' % 'a'|'%s %s' % ('a',)|'%s' % (1, 2)|'a' % 1|'a' % l|'%s' % l|'%*d' % (5, 3)|'%#x %#o' % (255, 8)|'%g %g %g' % (100000, 1000000, 0.0001)|'%(a)s'|format(a='x')|'%s' % true|'%.3d' % 7|'%i' % true|'%q' % 1|'%' % 1
7.0 // 0.1|-7 // 2.0|5.5 % -2|0.0 ** -1|2 ** 0.5|10 ** -2|0 ** 0|10 ** 400 * 1.0|2 ** 53 + 1 == 2.0 ** 53|9007199254740993 / 3|1e308 * 10|(1e308 * 10)|int|'nan'|float == 'nan'|float|'nan'|float < 1|'1_000'|int|' 12 '|int|'0b11'|int(base=0)|'1d'|float|'inf'|float|-7 % -3|15|round(-1)|2.5|round|int|1234.5|round(-2)|-0.4|round|2.675|round(2, 'ceil')|true|round
'ab'.startswith('b', 1)|'abcabc'.find('c', 3)|'abcabc'.rfind('a')|'abc'.index('z')|'abab'.count('ab', 1)|'a b c'.rsplit(none, 1)|'a  b '.split(none, 1)|'a
b'.splitlines(true)|'ß'.upper()|'ß'.casefold()|'they're bill's'.title()|'Ab Cd'.istitle()|'²'.isdigit()|'²'.isdecimal()|'½'.isnumeric()|'a_b'.isidentifier()|'a	b'.expandtabs(4)|'abc'.center(2)|'aXbX'.replace('X', '-', count=1)|'abc'.ljust(5, 'xy')|d.get(key='b')|'abc'.encode is defined|s.nope()|'x'.join([1])|'a-b_c d'|wordcount|"a'b"|title
'<a>'|safe + '<b>'|('<'|e) ~ '<'|'<b>'|e is escaped|'x' is escaped|('%s'|safe) % '<'|('<'|safe)|upper + '<'|(', '|safe).join(['<', '>'])|['<'|safe]|'<'|safe|length|'<'|forceescape|('<'|e)|e
x is sameas none|l is sameas l|'map' is filter|'nomap' is filter|'odd' is test|1.0 is odd|2.5 is even|1 is divisibleby 0|n is in l|loop is defined|l is not string and n is number|'a' is in s|x is eq x|n is between 3|n is odd is defined|n is odd if t else 3|'a' if x is none else 'b'|l is eq [3, 1, 2]|n is not odd|(1, 2) < (1, 3)|[1] < (1,)|{} < {}|x < none|nothing < 1|'a' < 1|[nothing] == [nope]|(1,) == [1]|true == 1 == 1.0
dict([(1, 2), ['a', 'b']])|dict({'a': 1}, b=2)|dict([1])|dict(1, 2)|namespace([('a', 1)]).a|namespace(_a=1)._a|namespace(a=1)|[*l]|f(*l)|'•AA\q'|'a' 'b' ~ 1|l[1:2, 0]|'\é'|1if t else 2
'''
import re
def split(line):
    # A | outside brackets separates expressions unless a filter's name follows.
    parts=[];cur='';depth=0;q=None
    filters=set(env.filters)|{'nofilter'}
    i=0
    while i<len(line):
        c=line[i]
        if q:
            cur+=c
            if c=='\\': cur+=line[i+1]; i+=1
            elif c==q: q=None
        elif c in '\'"': q=c; cur+=c
        elif c in '([{': depth+=1; cur+=c
        elif c in ')]}': depth-=1; cur+=c
        elif c=='|' and depth==0:
            m=re.match(r'\|\s*([a-z]+)(?![\w.(]*\.)(.*)',line[i:])
            if m and m.group(1) in filters and not (m.group(1) in ('e','d') and re.match(r'\|(e\||d\||e$|d$|d\.|e\.)',line[i:])): cur+=c
            else: parts.append(cur); cur=''
        else: cur+=c
        i+=1
    parts.append(cur); return [p for p in parts if p.strip()]
k=0
for line in exprs.strip().splitlines():
    for e in split(line):
        k+=1; add("expression %d: %s"%(k,e), "{{ "+e+" }}")
for i,t in enumerate([
 "a\n", "a\n\n", "\n", "", "a\r\nb\r", "  {% if t %}\n  x\n  {% endif %}\n y", "x {% if t %} y {% endif %} z", "  {{ n }}  \n  {{- n -}}  \n z",
 "a\n  {%- if t -%}\n   b\n  {%- endif -%}\n c", "a\n  {%+ if t %}\nb{% endif +%}\nc", "a {# c #}\n  {# d #}\n b", "a\n {#- c -#} \n b", "{% raw %}{{ x }} {% if %}\n {% endraw %}\n q", "a\n  {%- raw -%}  {{ x }} {%- endraw -%}  b",
 "{% for i in l %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}\n!", "{% for i in l -%}\n  {{ i }}\n{%- endfor %}", "{{ '}}' }}{{ {'a': {'b': 1}} }}", "{{ '%}' }}{% if '%}' == '%}' %}ok{% endif %}", "{ {x} {{'{'}} {a% %}", "\t{% set q = 1 %}\t\n\t{{ q }}",
 "{% if x %}\na\n{% elif n > 3 %}\nb\n{% else %}\nc\n{% endif %}\n", "{%if t%}a{%endif%}{{n}}{{-n-}}{{ n -}} \n {{+ n }}", "{%- set q %}\n  in {{ n }}\n{% endset -%}\n[{{ q }}]", "{% set q | upper | trim %} abc {% endset %}[{{ q }}]",
 "\u00a0 {%- if t %} a{% endif %}", "{% if t %}\n\n  a\n\n{% endif %}\n\nb", "{#\n multi\n#}\nx\n  {#- y #}\nz","a{{ ' \n ' }}b\n   {%- set z = 1 %}\n   c","{% if t %}{# c #}\n{% endif %}\n x","   {{ 'a' }}\n  {% set a = 1 -%}  \n  b  ",
 ]): add("whitespace %d"%i, t)
for i,t in enumerate([
 "{% for k, v in d|items %}{{ k }}={{ v }};{% endfor %}", "{% for k, v in d.items() %}{{ loop.index }}/{{ loop.length }} {{ k }} {% endfor %}", "{% for a, (b, c) in [[1, [2, 3]], [4, [5, 6]]] %}{{ a }}{{ b }}{{ c }} {% endfor %}",
 "{% for i in l %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.depth }}{{ loop.cycle('o', 'e') }} {% endfor %}", "{% for i in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }} {% endfor %}",
 "{% for i in l if i > 1 %}{{ i }}{{ loop.last }}{% else %}none{% endfor %}", "{% for i in l if i > 9 %}{{ i }}{% else %}none{% endfor %}", "{% for i in nope %}x{% else %}empty{% endfor %}", "{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
 "{% set a = 1 %}{% for i in l %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }}", "{% set ns = namespace(n=0, found=false) %}{% for i in l %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}{{ ns.found }}{{ ns.nope is defined }}", "{% if t %}{% set a = 2 %}{% endif %}{{ a }}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set c = 1, %}{{ c }}",
 "{% macro m(a, b='d', c=none) %}<{{ a }}|{{ b }}|{{ c }}>{% endmacro %}{{ m(1) }}{{ m(1, c=2) }}{{ m(b=1, a=2) }}{{ m() }}", "{% macro r(n) %}{{ n }}{% if n > 0 %}{{ r(n - 1) }}{% endif %}{% endmacro %}{{ r(3) }}", "{% set q = 5 %}{% macro m() %}{{ q }}{% endmacro %}{{ m() }}{% set q = 6 %}{{ m() }}",
 "{% macro w(t) %}<{{ t }}>{{ caller('c') }}</{{ t }}>{% endmacro %}{% call(x) w('b') %}in {{ x }}{% endcall %}", "{% filter upper %}abc {{ n }}{% endfilter %}", "{% with a = 1, b = n %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% generation %}abc{{ n }}{% endgeneration %}\nx", "{% for i in l %}{% for j in l %}{{ loop.index }}{{ i }}{% endfor %}{% endfor %}", "{% for c in 'añ😀' %}[{{ c }}]{% endfor %}",
 "{% for p in people|sort(attribute='name') %}{{ p.name }}{% if p.on is defined and p.on %}+{% endif %}{% endfor %}", "{% set x = l|map('string') %}{{ x|join }}{{ x|join }}", "{% set g = e|select('defined') %}{% if g %}yes{% endif %}", "{% for i in l %}{{ loop.changed(i > 1) }} {% endfor %}", "{% for i in (1, 2) %}{{ i }}{% endfor %}{% for i in 1, 2 %}{{ i }}{% endfor %}", "{% for i in 5 %}{% endfor %}", "{% for a, b in l %}{% endfor %}", "{% set l.x = 1 %}",
 "{% if t %}", "{{ n", "{% foo %}", "{{ 'a }}", "{{ [1, 2 }}", "{% endif %}", "{{ m(a=1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(z=2) }}", "{% for i in l %}{{ i }}", "{# x", "{{ 1 ? 2 }}", "{{ }}", "{% break %}",
 "{% for i in range(2) %}{% for j in range(3) %}{% if j == 1 %}{% break %}{% endif %}{{ i }}{{ j }} {% endfor %}{% endfor %}", "{% macro a() %}{% set z = 3 %}{{ z }}{% endmacro %}{{ a() }}{{ z is defined }}", "{{ loop is defined }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns['b'] }}","{% for d in people %}{{ d['name'] }}{% endfor %}{{ d.b }}",
 ]): add("statement %d"%i, t)
for i,t in enumerate([
 "{% macro m(a, b=a) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3, 4, z=5) }}{{ m(*l) }}{{ m(*l, z=1) }}{{ m(**{'a': 1, 'q': 2}) }}{{ m(*[1], **{'b': 2}) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1, 2]) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(**{1: 2}) }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(a=1, **{'a': 2}) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% macro m(a, a) %}{% endmacro %}", "{% macro m(a=1, b) %}{% endmacro %}", "{% macro m(a, b=2) %}{{ caller() }}{% endmacro %}{{ m }}{{ m.name }}{{ m.arguments }}{{ m.caller }}{{ m.catch_kwargs }}{{ m is callable }}", "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{% call m() %}y{% endcall %}", "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "{% macro m(caller=none) %}{{ caller is none }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}", "{% macro m(kwargs) %}{{ kwargs }}{% endmacro %}{{ m(3) }}",
 "{% for n in [{'v': 1, 'c': [{'v': 2, 'c': []}, {'v': 3}]}, {'v': 4}] recursive %}{{ loop.depth }}{{ loop.depth0 }}:{{ n.v }}{% if n.c %}[{{ loop(n.c) }}]{% endif %}{% else %}empty{% endfor %}", "{% for i in [[1, [2]], 3] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{{ loop.last }}{% endif %}{% endfor %}", "{% for i in l %}{{ loop(l) }}{% endfor %}", "{% for i in l, recursive %}{{ i }}{% endfor %}", "{% for i in l %}{% for j in l %}{{ loop.depth }}{% endfor %}{% endfor %}", "{% for i in l %}{% break %}{% else %}else{% endfor %}", "{% for i in l %}{% continue %}{% else %}else{% endfor %}", "{% for i in l|select('gt', 1) %}{{ loop.length }}{{ loop.nextitem }}{{ i }}{{ loop.last }} {% endfor %}", "{% set g = l|map('string') %}{% for i in g %}{{ i }}{% break %}{% endfor %}{{ g|list }}", "{% for i in l %}{{ loop }}{{ loop|length }}{% endfor %}", "{% for loop in l %}{% endfor %}", "{% for i in l %}{% set loop = 1 %}{% endfor %}", "{% set true = 1 %}", "{% for i in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", "{% for i in l %}{% set v %}a{% break %}{% endset %}{% endfor %}{{ v is defined }}", "{% for i in l %}{% filter upper %}a{{ i }}{% if i == 1 %}{% continue %}{% endif %}b{% endfilter %}{% endfor %}",
 "{% set c = cycler('a', 'b') %}{{ c.current }}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.reset() }}{{ c.next() }}", "{{ cycler() }}", "{% set j = joiner('|') %}{% for i in l %}{{ j() }}{{ i }}{% endfor %}", "{% set j = joiner() %}{{ j() }}{{ j() }}", "{% block a %}{{ n }}{% set n = 3 %}{% endblock %}{{ n }}{% for i in l %}{% block b scoped %}{{ i }}{% endblock %}{% endfor %}", "{% for i in l %}{% block c %}[{{ i }}]{% endblock c %}{% endfor %}", "{% block a %}{% endblock %}{% block a %}{% endblock %}", "{% if x %}{% include 'a' %}{% import 'b' as b %}{% from 'c' import d %}{% endif %}ok", "{% include 'a' %}", "{% import 'b' as b %}", "{% extends 'x' %}", "{% autoescape false %}{{ '<' }}{% endautoescape %}", "{% print n, 'a' %}", "{% if t: %}a{% endif %}{% for i in l: %}{{ i }}{% endfor %}", "{% with a = 1, (b, c) = (2, 3) %}{{ a }}{{ b }}{{ c }}{% endwith %}", "{% call d.get('b') %}{% endcall %}", "{#-#}  a{#+#} b", "{{- '\\u00e9' }}{{+n}}{{+ l -}} x",
 "{% for t in [{'type': 'array', 'items': {'type': 'string'}}, {'type': ['string', 'null']}, {'type': 'integer'}] %}{% set m = {'string': 'str', 'integer': 'int'} %}{{ m[t.type] if t.type in ['string', 'integer'] else m[t.type] }}|{{ m[t['type']] is defined }}|{{ t.items is mapping }}{% endfor %}",
 ]): add("language %d"%i, t)
chatml="""{% for message in messages %}
{% if loop.first and messages[0]['role'] != 'system' %}
{{ '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
{% endif %}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
{{ '<|im_start|>assistant\\n' }}
{% endif %}
"""
qwen="""{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Functions\\n\\nCall them as you need.\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n<|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(tail=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.tail and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.tail = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}
        {%- set content = message.content %}
    {%- else %}
        {%- set content = '' %}
    {%- endif %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or (not loop.last and thought)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if (loop.first and content) or (not loop.first) %}
                {{- '\\n' }}
            {%- endif %}
            {%- if tool_call.function %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|im_end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
llama="""{{- bos_token }}
{%- if custom_tools is defined %}
    {%- set tools = custom_tools %}
{%- endif %}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}
    {%- set tools = none %}
{%- endif %}
{#- the system message comes first #}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
        {%- if message['content'] is string %}
            {{- message['content'] | trim }}
        {%- else %}
            {%- for part in message['content'] %}
                {%- if part.type == 'text' %}{{ part.text | trim }}{% else %}{{ '<|image|>' }}{% endif %}
            {%- endfor %}
        {%- endif %}
        {{- '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("only single tool-calls at once") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- tool_call.name + "(" }}
        {%- for arg_name, arg_val in tool_call.arguments | items %}
            {{- arg_name + '="' ~ arg_val ~ '"' }}
            {%- if not loop.last %}
                {{- ", " }}
            {%- endif %}
        {%- endfor %}
        {{- ")" }}
    {%- elif message.role == "tool" or message.role == "ipython" %}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
mistral="""{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val|tojson }}
                    {%- endif %}
                    {%- if not loop.last %}
                        {{- ", " }}
                    {%- endif %}
                {%- endfor %}
                {{- "}}" }}
                {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" }}{{ message["content"] }}{{ "[/INST]" }}
        {%- else %}
            {{- "[INST] " ~ message["content"] ~ "[/INST]" }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}
            {{- out[:-1] }}
            {%- if tool_call.id is not defined or tool_call.id|length < 6 %}
                {{- raise_exception("tool call ids") }}
            {%- endif %}
            {{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" %}
        {%- set content = message.content.content if message.content.content is defined else message.content %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
gemma="""{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set prefix = messages[0]['content'] + '\n\n' -%}
    {%- else -%}
        {%- set prefix = messages[0]['content'][0]['text'] + '\n\n' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '\n' + (prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}
                {{ '<image>' }}
            {%- elif item['type'] == 'text' -%}
                {{ item['text'] | trim }}
            {%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\n'}}
{%- endif -%}
"""
macros="""{%- macro type_of(spec) -%}
    {%- set base = {"string": "str", "integer": "int"} -%}
    {%- if spec.type in base -%}
        {{- base[spec.type] -}}
    {%- elif spec.type == "array" -%}
        {{- "list[" + type_of(spec["items"]) + "]" -}}
    {%- elif spec.type is iterable and spec.type is not string -%}
        {{- spec.type | map('upper') | join(' | ') -}}
    {%- else -%}
        {{- "dict" -}}
    {%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] %}
def {{ tool.function.name }}(
{%- for name, fields in tool.function.parameters.properties.items() %}
{{- name }}: {{ type_of(fields) }}{% if fields.default is defined %} = {{ fields.default }}{% endif %}{{ ", " if not loop.last }}
{%- endfor %}){% if tool.function.description %}  # {{ tool.function.description|replace('"', "'")|lower }}{% endif %}

{% endfor %}
{%- for message in messages|selectattr('role', 'in', ['user', 'assistant']) %}
{%- generation %}{{ message.role|upper }}: {{ message.content if message.content is string else message.content|tojson }}
{% endgeneration %}
{%- endfor %}"""
inst="""{% if messages[0]['role'] == 'system' %}{% set turns = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set turns = messages %}{% set system = false %}{% endif %}
{% for m in turns | rejectattr("role", "equalto", "tool") | selectattr("tool_calls", "undefined") %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}
{% for m in turns %}{% if loop.index0 == 0 and system != false %}{% set text = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + m['content'] %}{% else %}{% set text = m['content'] %}{% endif %}
{% if m['role'] == 'user' %}{{ bos_token + '[INST] ' + text.strip() + ' [/INST]' }}{% elif m['role'] == 'assistant' %}{{ ' '  + text.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
for name,t in [("chatml",chatml),("qwen",qwen),("llama",llama),("mistral",mistral),("gemma",gemma),("macros",macros),("inst",inst)]:
    add(name+" chat",t,chat=True)
    add(name+" chat, tools",t,chat=True,tools=tools)
    add(name+" no system, no generation prompt",t,chat=True,messages=chat[1:],add_generation_prompt=False)
    add(name+" agent",t,chat=True,tools=tools,messages=agent)
    add(name+" agent, one call",t,chat=True,tools=tools,messages=[({**m,"tool_calls":m["tool_calls"][:1]} if "tool_calls" in m else m) for m in agent])
    add(name+" parts",t,chat=True,messages=[agent[-1]],enable_thinking=False)
    add(name+" empty",t,chat=True,messages=[])
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "jinja-cases.json"), "w") as out:
    out.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
print(len(cases), sum('fails' in c for c in cases))
