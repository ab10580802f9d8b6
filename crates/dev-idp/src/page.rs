//! The local approval page: one plain form, no script.

/// The page that asks who approves a code.
pub(crate) fn approval(base: &str, user_code: &str, default_user: &str) -> String {
    let (code, user) = (escape(user_code), escape(default_user));
    document(&format!(
        "<p>A program asks to sign in. Approve it only if it shows you this code.</p>\
         <form method=\"post\" action=\"{base}/device/approve\">\
         <p><label>Code <input name=\"userCode\" value=\"{code}\" required autocomplete=\"off\"></label></p>\
         <p><label>User <input name=\"user\" value=\"{user}\" required maxlength=\"64\"></label></p>\
         <p><button>Approve</button> <button formaction=\"{base}/device/deny\">Deny</button></p></form>"
    ))
}

/// A page that says one thing.
pub(crate) fn message(text: &str) -> String {
    document(&format!("<p>{}</p>", escape(text)))
}

fn document(body: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Development sign-in</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>body{{font:16px system-ui;max-width:34em;\
         margin:4em auto;padding:0 1em}}</style></head><body><h1>Development sign-in</h1>{body}\
         <p><small>This identity provider signs in any user name. It is not for production.</small></p></body></html>"
    )
}

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}
